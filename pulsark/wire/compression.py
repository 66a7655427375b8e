"""Compression and decompression of payloads, compatible with clients.

The sender claims the uncompressed size. The claim is checked against a limit before memory is
allocated, and decompression never writes more than the claim.
"""

from __future__ import annotations

import zlib

from pulsark.errors import ProtocolError
from pulsark.wire import pulsar_pb2 as pb


def compress(kind: pb.CompressionType, data: bytes) -> bytes:
    """The payload in the form that ``MessageMetadata.compression`` names."""
    match kind:
        case pb.LZ4:
            import lz4.block

            return bytes(lz4.block.compress(data, store_size=False))
        case pb.ZLIB:
            return zlib.compress(data)
        case pb.ZSTD:
            import cramjam

            return bytes(cramjam.zstd.compress(data))
        case pb.SNAPPY:
            import cramjam

            return bytes(cramjam.snappy.compress_raw(data))
        case _:
            return data


def decompress(kind: pb.CompressionType, data: bytes, uncompressed_size: int, limit: int) -> bytes:
    """The payload as it was, ``uncompressed_size`` bytes and at most ``limit``.

    Raises ``ProtocolError`` for a larger claim and for data that is damaged, shorter or longer.
    Without compression the claim is not looked at: clients leave it out.
    """
    if kind == pb.NONE:
        uncompressed_size = len(data)
    if uncompressed_size > limit:
        raise ProtocolError(f"A payload of {uncompressed_size} bytes is over the limit of {limit}")
    match kind:
        case pb.NONE:
            return data
        case pb.LZ4:
            result = _lz4(data, uncompressed_size)
        case pb.ZLIB:
            result = _zlib(data, uncompressed_size)
        case pb.ZSTD | pb.SNAPPY:
            result = _zstd_or_snappy(kind, data, uncompressed_size)
        case _:
            raise ProtocolError(f"An unknown compression type: {kind}")
    if len(result) != uncompressed_size:
        raise ProtocolError(
            f"A compressed payload has {len(result)} bytes and not {uncompressed_size}"
        )
    return result


def _lz4(data: bytes, size: int) -> bytes:
    import lz4.block

    try:
        return bytes(lz4.block.decompress(data, uncompressed_size=size))
    except (lz4.block.LZ4BlockError, ValueError, OverflowError) as error:
        raise ProtocolError(f"A damaged LZ4 block: {error}") from None


def _zlib(data: bytes, size: int) -> bytes:
    stream = zlib.decompressobj()
    try:
        # One byte more than claimed is allowed: otherwise the end of the stream, with its own
        # checksum, would not be reached.
        result = stream.decompress(data, size + 1)
    except zlib.error as error:
        raise ProtocolError(f"A damaged ZLIB stream: {error}") from None
    if not stream.eof and len(result) <= size:
        raise ProtocolError("A ZLIB stream without its end")
    return result


def _zstd_or_snappy(kind: pb.CompressionType, data: bytes, size: int) -> bytes:
    import cramjam

    result = bytearray(size)
    decode = cramjam.zstd.decompress_into if kind == pb.ZSTD else cramjam.snappy.decompress_raw_into
    try:
        written = decode(data, result)
    except cramjam.DecompressionError as error:
        raise ProtocolError(f"Damaged compressed data: {error}") from None
    return bytes(result) if written == size else bytes(result[:written])
