"""How each file format is read and written: losslessly, and edited in place.

Every parser keeps the text it was given, so that writing an unchanged document gives the same bytes.
"""


class FormatError(Exception):
    """A text is not what its format allows: ``line`` counts from 1 (0: the whole), ``reason`` says what."""

    def __init__(self, reason: str, line: int = 0) -> None:
        super().__init__(f"line {line}: {reason}" if line else reason)
        self.reason = reason
        self.line = line
