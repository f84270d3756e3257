"""Stores in databases, PostgreSQL and MySQL (MariaDB), with the original's tables."""
