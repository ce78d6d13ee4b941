"""What the tests look at in a server's /status."""

from __future__ import annotations

from larder_server import LarderServer
from polling import until

CHUNK = 8  # tokens


def assert_nothing_is_held(server: LarderServer) -> None:
    """No lock is left behind; a reply's pins end with its last byte, which may be a moment ago."""
    until(
        lambda: (server.l1()["read_locked_count"], server.l1()["write_locked_count"]) == (0, 0),
        "no lock is left",
    )


def instances(server: LarderServer) -> list[int]:
    """The workers that the server knows."""
    known: list[int] = server.status()["registered_non_cuda_instance_ids"]
    return known


def wait_until_all_have_gone(server: LarderServer) -> None:
    """Before a server stops whose clients have closed their connections.

    A connection that ends on the server's side while the client of 0.5.6 is closing it can stop
    that client's I/O thread for good: it tells a monitor socket that nobody reads any more.
    """
    until(lambda: not server.status()["client_connections"], "all connections are closed")
