"""The asyncio client: against a NATS server made here, against real servers, and against recorded
ones.
"""
