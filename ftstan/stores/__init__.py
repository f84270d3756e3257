"""Where channels rest: the interface of a store, and the stores that ship."""
