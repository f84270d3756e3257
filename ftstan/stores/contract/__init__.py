"""The contract of ``ftstan.stores.interface`` as a test suite that any store can run
(``docs/store-interface.md``).

Subclass the classes in a test module and give each the fixture that it names. Nothing here imports
pytest: whoever runs the suite brings it.
"""

from ftstan.stores.contract.access import AccessContract
from ftstan.stores.contract.durable import DurableContract
from ftstan.stores.contract.place import Place
from ftstan.stores.contract.store import StoreContract

__all__ = ["AccessContract", "DurableContract", "Place", "StoreContract"]
