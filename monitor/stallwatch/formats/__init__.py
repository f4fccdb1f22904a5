"""Pure parsers: bytes or text in, values out. Nothing here opens a file."""
