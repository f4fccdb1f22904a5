"""What an environment would be told after a change: no remedy may set what another check refuses."""

import contextlib
from collections.abc import Mapping
from dataclasses import replace

import msgspec

from stallwatch.doctor.check import Check, Inapplicable, Undetermined
from stallwatch.doctor.environment.by_version import NotReadByThisVersion, RecorderOff
from stallwatch.doctor.environment.combinations import Contradictions
from stallwatch.doctor.environment.syntax import WrongSyntax
from stallwatch.doctor.environment.values import DebugLeftOn, OutOfRange
from stallwatch.doctor.network.interfaces import InterfaceExists
from stallwatch.doctor.surroundings import NamedEnvironment, Surroundings

# Checks that judge by the values alone.
OF_VALUES: tuple[Check, ...] = (
    OutOfRange(), WrongSyntax(), DebugLeftOn(), Contradictions(), RecorderOff(), NotReadByThisVersion(),
    InterfaceExists(),
)  # fmt: skip


def is_found(surroundings: Surroundings, environment: NamedEnvironment, name: str) -> bool:
    """Whether the value of this variable is a finding of its own."""
    alone = msgspec.structs.replace(environment, values={name: environment.values[name]})
    return bool(_seen(surroundings, alone))


def can_be_set(surroundings: Surroundings, environment: NamedEnvironment, old: str, new: str, value: str) -> bool:
    """Whether `unset old; export new=value` brings no finding that is not there already."""
    before = _seen(surroundings, environment)
    values: Mapping[str, str] = {n: v for n, v in environment.values.items() if n != old} | {new: value}
    after = _seen(surroundings, msgspec.structs.replace(environment, values=values))
    return after <= before


def _seen(surroundings: Surroundings, environment: NamedEnvironment) -> set[tuple[str, str]]:
    around = replace(surroundings, environments=(environment,))
    found = set()
    for check in OF_VALUES:
        with contextlib.suppress(Inapplicable, Undetermined):
            found |= {
                (record.check, record.seen)
                for record in check.look(around)
                if record.subject == environment.place  # not what the versions alone say
            }
    return found
