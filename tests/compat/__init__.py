"""Behaviour that existing clients, operators and datastores rely on."""
