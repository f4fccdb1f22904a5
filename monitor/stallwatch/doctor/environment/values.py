"""Values: out of range, debugging settings left on."""

import difflib
import re
from collections.abc import Iterator
from typing import ClassVar

from stallwatch.doctor.check import finding
from stallwatch.doctor.check_result import Area, FindingRecord
from stallwatch.doctor.environment.known_variables import Variable, catalogue
from stallwatch.doctor.infiniband import infiniband_ports
from stallwatch.doctor.surroundings import NamedEnvironment, Surroundings

# c10d's getCvarBool takes these, in any case (2.13 ends, or hangs, on "on"); NCCL's parameters are integers.
_TORCH_BOOLEANS = frozenset(("0", "1", "y", "n", "yes", "no", "t", "f", "true", "false"))


def _real(surroundings: Surroundings) -> Iterator[tuple[NamedEnvironment, Variable, str]]:
    """Every variable that is set, once: where old and new name say the same, the new one speaks for both."""
    known = catalogue()
    for environment in surroundings.environments:
        for name, value in sorted(environment.values.items()):
            variable = known.rules_of(name)
            newest = known.newest_name(name)
            if variable is not None and value != "" and (newest == name or environment.values.get(newest) != value):
                yield environment, variable, value.strip()


def unset(environment: NamedEnvironment, name: str) -> str:
    """The command that takes a variable away, under all names that say the same."""
    return "unset " + " ".join(catalogue().names_set(name, environment.values))


def _calls_it(variable: Variable) -> str:
    """What follows where an old name was used: its new one."""
    old = catalogue().variables[variable.name]
    return f" ({old.owner} calls it {old.instead} since {old.since})" if old.status == "renamed" else ""


# A text in quotes or with a carriage return is wrong_syntax's to tell.
_MARRED = re.compile(r"""^["'].*["']$|\r""", re.DOTALL)


def is_marred(value: str) -> bool:
    """Whether a value stands in quotes or holds a carriage return, as a file made it."""
    return bool(_MARRED.search(value))


# NCCL's functions before ":" in NCCL_ALGO and NCCL_PROTO since 2.24.
_FUNCTION = re.compile(r"^\s*\w+\s*:")
# Environments in which a network plugin of a cloud, or SHARP, is at work.
_PLUGIN_NAMES = ("NCCL_NET", "NCCL_NET_PLUGIN", "NCCL_TUNER_PLUGIN", "FI_PROVIDER")
_PLUGIN_PREFIXES = (
    "OFI_NCCL_", "NCCL_FASTRAK_", "NCCL_GPUDIRECTTCPX", "NCCL_SHARP_", "SHARP_", "NCCL_OFI_", "NCCL_EFA_", "NCCL_UCX_",
    "NCCL_IBEXT_",
)  # fmt: skip


def complaint(variable: Variable, value: str) -> str:
    """Why the owner does not accept a value, as the rest of a sentence; "" when it does."""
    if variable.kind == "integer" or (variable.kind == "boolean" and variable.owner == "NCCL"):
        number = integer(value)
        least, most = (0, 1) if variable.kind == "boolean" else (variable.minimum, variable.maximum)
        if number is None:
            # NCCL's parameters go through strtoll, which stops at the first character that is no digit.
            read = f": NCCL reads {leading_integer(value)}" if variable.owner == "NCCL" else ""
            return f"is no whole number{read}"
        if (least is not None and number < least) or (most is not None and number > most):
            if most is None:
                return f"is below {least}"
            return f"is outside {least if least is not None else '…'} to {most}"
    elif variable.kind == "boolean" and variable.owner == "PyTorch" and not _is_boolean(variable, value):
        return "is neither 0 nor 1"
    elif variable.kind == "choice" and not _is_choice(variable, value):
        return f"is none of {', '.join(variable.choices)}"
    elif variable.kind == "tokens":
        return _unknown(variable, value.removeprefix("^").upper().split(","))
    elif variable.kind == "algorithms":
        parts = (_FUNCTION.sub("", part).strip().removeprefix("^") for part in value.split(";"))
        return _unknown(variable, [token.strip().upper() for part in parts for token in part.split(",")])
    return ""


def _is_choice(variable: Variable, value: str) -> bool:
    return value in variable.choices if variable.exact else value.upper() in map(str.upper, variable.choices)


def _nearest_choice(variable: Variable, value: str) -> str:
    word = value.lower() if variable.exact else value
    near = (
        [variable.meant[word]] if word in variable.meant else difflib.get_close_matches(word, _alike(variable, word), 1)
    )
    return near[0] if near else ""


def _is_boolean(variable: Variable, value: str) -> bool:
    return value.lower() in _TORCH_BOOLEANS or value in variable.left_on


def _unknown(variable: Variable, tokens: list[str]) -> str:
    known = {choice.upper() for choice in variable.choices}
    unknown = [token for token in tokens if token and token not in known]
    return f"has {', '.join(unknown)}, which is none of {', '.join(variable.choices)}" if unknown else ""


def integer(value: str) -> int | None:
    """The number that a whole text is, in C's notations; None when it is none."""
    try:
        return int(value, 0)
    except ValueError:
        return int(value) if value.isdecimal() else None


def leading_integer(value: str) -> int:
    """What strtoll(3) takes of a text: the number at its beginning, 0 when there is none."""
    match = re.match(r"[+-]?(?:0[xX][0-9a-fA-F]+|\d+)", value)
    return (integer(match[0]) or 0) if match else 0


class OutOfRange:
    """Holds each value to the kind, bounds and choices of its catalogue entry; values that are marred are left to
    WrongSyntax."""

    name: ClassVar[str] = "value_out_of_range"
    area: ClassVar[Area] = "environment"
    looks_for: ClassVar[str] = (
        "values that their owner ignores or takes as something else (NCCL_IB_TIMEOUT=0 is for ever)"
    )

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        """A finding for each value that its reader refuses, replaces or takes for something else, with the nearest that
        it accepts."""
        return tuple(
            finding(
                self,
                variable.wrong_severity,
                environment.place,
                seen=f"{variable.name}={value} {problem}{_calls_it(variable)}.",
                why=_why_wrong(variable),
                remedy=f"{unset(environment, variable.name)}, or set a value that {variable.owner} accepts"
                + (f" ({near}?)" if (near := _nearest_choice(variable, value)) else ""),
                source=variable.source,
            )
            for environment, variable, value in _real(surroundings)
            if not is_marred(environment.values[variable.name]) and (problem := complaint(variable, value))
        )


class DebugLeftOn:
    """By the catalogue's "left_on"; what a cloud's network plugin chooses by itself is an info."""

    name: ClassVar[str] = "debug_left_on"
    area: ClassVar[Area] = "environment"
    looks_for: ClassVar[str] = (
        "settings for debugging that cost speed or hang (P2P, SHM or IB off, blocking wait, launch blocking)"
    )

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        """A finding for each setting that costs speed or disk for as long as it stays; those of InfiniBand only where
        there is some."""
        has_infiniband = bool(infiniband_ports(surroundings))
        plugin = any(map(_has_plugin, surroundings.environments))
        return tuple(
            finding(
                self,
                "info" if variable.plugins_choose and plugin else variable.severity,
                environment.place,
                seen=f"{variable.name}={value} is set{_calls_it(variable)}.",
                why=variable.why,
                remedy=_without(environment, variable),
                source=variable.source,
            )
            for environment, variable, value in _real(surroundings)
            if not is_marred(environment.values[variable.name])
            and is_left_on(variable, value)
            and not complaint(variable, value)
            and (has_infiniband or not variable.needs_infiniband)
        )


def _why_wrong(variable: Variable) -> str:
    """What a value does that the owner does not accept."""
    if variable.wrong_why:
        return variable.wrong_why
    # Of one that may be left on, `why` tells what that value does.
    return variable.why if variable.why and not variable.left_on else "It is ignored, or taken for something else."


def _alike(variable: Variable, value: str) -> list[str]:
    """The choices in the letters that somebody used."""
    return [choice.lower() if value.islower() else choice for choice in variable.choices]


def _without(environment: NamedEnvironment, variable: Variable) -> str:
    """The remedy of a value that is left on; one that takes the variable away takes all its names."""
    newest = catalogue().newest_name(variable.name)
    return re.sub(rf"\bunset {newest}\b", unset(environment, variable.name), variable.remedy)


def _has_plugin(environment: NamedEnvironment) -> bool:
    values = environment.values
    return any(values.get(name) for name in _PLUGIN_NAMES) or any(name.startswith(_PLUGIN_PREFIXES) for name in values)


def is_left_on(variable: Variable, value: str) -> bool:
    """Whether a value is for debugging only."""
    return "*" in variable.left_on or value.lower() in {one.lower() for one in variable.left_on}
