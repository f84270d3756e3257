"""Names of a streaming cluster in NATS: its stream, the subject of its log, and where nodes talk.

A cluster id may hold what a stream's name must not, and two ids must never share a stream: so every
other character is written as its code, and ``a.b`` and ``a_b`` stay apart.
"""

from __future__ import annotations

from ftstan.nats.clustered import encoded


def stream_name(cluster_id: str) -> str:
    """The stream that is the log of the cluster."""
    return f"FTSTAN_{encoded(cluster_id)}"


def log_subject(cluster_id: str, incarnation: bytes) -> str:
    """The one subject of that stream: another stream of the same name has another one."""
    return f"_FTSTAN.log.{encoded(cluster_id)}.{incarnation.hex()}"


def beat_subject(cluster_id: str) -> str:
    """Where the leader says that it is there."""
    return f"_FTSTAN.cluster.{encoded(cluster_id)}.beat"


def copy_subject(cluster_id: str, node_id: str) -> str:
    """Where the store of a node can be copied."""
    return f"_FTSTAN.cluster.{encoded(cluster_id)}.copy.{encoded(node_id)}"


def question_subject(cluster_id: str) -> str:
    """Where nodes are asked how far they are; every node answers."""
    return f"_FTSTAN.cluster.{encoded(cluster_id)}.ask"
