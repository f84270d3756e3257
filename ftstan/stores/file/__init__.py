"""The file store: byte-compatible with the original's datastore (``docs/store.md``)."""
