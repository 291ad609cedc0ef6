"""Codecs and the payload's checksum: codec.py's parts.

data   kinds of data         lossy   lossy gradient codecs         wire   a transfer over loopback
"""
