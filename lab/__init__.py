"""``make lab``: three virtual machines, a real file server, a pair installed by the playbooks, and
what becomes of it.

Nothing of ``ftstan`` imports it. ``docs/lab.md`` says how it is run and what each stage proves.
"""
