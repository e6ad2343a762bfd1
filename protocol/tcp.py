"""Addresses of tcp endpoints: taken apart, checked, put together."""

from __future__ import annotations


def split_tcp(value: str) -> tuple[str, int]:
    """Address and port of `tcp://address:port`, or of the same without its scheme.

    Raises ValueError when it is something else. An IPv6 address stands in brackets.
    """
    address, separator, port = value.strip().removeprefix("tcp://").rpartition(":")
    bare = address[1:-1] if address.startswith("[") and address.endswith("]") else address
    if not separator or not bare or (":" in bare and bare == address):
        raise ValueError("is not of the form address:port")
    if not port.isascii() or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError("has no port from 1 to 65535")
    if not all(character.isalnum() or character in ".:-_%" for character in bare):
        raise ValueError("has no address")
    return bare, int(port)


def join_tcp(address: str, port: int) -> str:
    """The endpoint `tcp://address:port`."""
    return f"tcp://[{address}]:{port}" if ":" in address else f"tcp://{address}:{port}"


def reachable(endpoint: str, through: str) -> str:
    """`endpoint` as a host reaches it that reaches the same machine at the endpoint `through`.

    They differ where it listens on all addresses of its machine. Raises ValueError for no tcp
    endpoint.
    """
    address, port = split_tcp(endpoint)
    return join_tcp(split_tcp(through)[0] if address in ("0.0.0.0", "::") else address, port)
