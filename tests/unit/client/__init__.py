"""Our asyncio client."""
