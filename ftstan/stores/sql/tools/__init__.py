"""What operators' tools read from a database: no owner is needed, and none is disturbed."""
