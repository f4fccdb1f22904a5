"""Options that are numbers: what is none is refused in words, not by a type's name in a library."""

import math

import click


class Number(click.FloatRange):
    """A number within bounds."""

    name = "number"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Given what was written, return the number; fail with a usage error that shows how one is written."""
        try:
            is_one = math.isfinite(float(str(value)))
        except ValueError:
            is_one = False
        if not is_one:
            self.fail(f"{value!r} is no number: write one such as 1 or 0.5", param, ctx)
        return float(super().convert(float(str(value)), param, ctx))


class WholeNumber(click.IntRange):
    """A whole number within bounds."""

    name = "number"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Given what was written, return the number; fail with a usage error that shows how one is written."""
        try:
            int(str(value))
        except ValueError:
            self.fail(f"{value!r} is no whole number: write one such as 1 or 20", param, ctx)
        return int(super().convert(int(str(value)), param, ctx))
