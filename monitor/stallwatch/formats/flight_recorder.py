"""torch's flight recorder dumps, of every dump version (2.4 to 2.10) and back end, pickle and JSON.

The dump is written by the job and trusted in nothing: `pickle_subset` interprets it, `recorder_entries` validates it.
What is bad is dropped with a caveat, what was complete before a file's sudden end is kept.
"""

import re
from collections import Counter
from functools import lru_cache
from typing import Any, Final

from stallwatch.formats import broken_json
from stallwatch.formats.entry_templates import SKIPPED, EntryTemplates, TemplateLibrary, runs
from stallwatch.formats.pickle_subset import Machine
from stallwatch.formats.recorder_entries import BadEntry, EntryReader, integer, text
from stallwatch.formats.recorder_table import RecorderTable, TableBuilder, expand
from stallwatch.formats.unreadable import Unreadable
from stallwatch.model.evidence import GroupStatus, RecordedGroup, Recorder

_MAXIMUM_GROUPS: Final = 65_536
_MAXIMUM_MEMBERS: Final = 4_000_000  # of all groups; of those beyond it nobody knows the members
_RANKS: Final = re.compile(r"\s*\[\s*(?:[0-9]{1,9}\s*(?:,\s*[0-9]{1,9}\s*)*)?,?\s*\]\s*")
_SHORT_TEXT: Final = 1 << 16  # the members of a group of ten thousand
_SHARED_ITEMS: Final = 1_000_000  # how much more than its own length a dump may refer to, see EntryReader


def parse(data: bytes, source: str, look: int = 1) -> Recorder:
    """Given a dump's bytes, return what it says. Raise Unreadable when nothing of it can be used."""
    return expand(parse_table(data, source, look))


def parse_table(data: bytes, source: str, look: int = 1, library: TemplateLibrary | None = None) -> RecorderTable:
    """As `parse`, in columns: what the reader passes between processes. Bad parts are named in `caveats`.

    A library that is kept makes dumps of one program faster to read.
    """
    if not data:
        raise Unreadable("it is empty: the rank was still about to write it")
    builder = TableBuilder()
    if data.lstrip()[:1] in (b"{", b"["):
        return _parse_json(data, source, look, builder)
    return _parse_pickle(data, source, look, builder, library or TemplateLibrary())


def _parse_pickle(
    data: bytes, source: str, look: int, builder: TableBuilder, library: TemplateLibrary
) -> RecorderTable:
    machine = Machine(data)
    entry_reader = EntryReader(builder, len(data) + _SHARED_ITEMS)
    templates = EntryTemplates(machine, entry_reader, library)
    caveats = []
    cut_short = False
    try:
        machine.run(templates.after_dict)
        dump = machine.value()
    except Unreadable as error:
        dump = _salvage(machine)
        if dump is None:
            raise
        cut_short = True
        caveats.append(f"{error}; what was complete before is used")
    finally:
        machine.missing = None  # no cycle: the reader of many dumps runs without a collector
    return _table(dump, source, look, builder, entry_reader, templates, caveats, cut_short=cut_short)


def _parse_json(data: bytes, source: str, look: int, builder: TableBuilder) -> RecorderTable:
    dump, broke_off = broken_json.decode(data)
    caveats = ["it broke off; what was complete before is used"] if broke_off else []
    entry_reader = EntryReader(builder, len(data) + _SHARED_ITEMS, of_json=True)
    return _table(dump, source, look, builder, entry_reader, None, caveats, cut_short=broke_off)


def _salvage(machine: Machine) -> dict[Any, Any] | None:
    """The complete part of a pickle that broke off: the top dictionary's finished pairs, and the entries before the
    break, which lie on the stack until their list is closed."""
    levels = [*machine.marks, machine.stack]
    if len(levels) < 2 or not levels[0] or type(levels[0][0]) is not dict:
        return None
    dump = dict(levels[0][0])
    pairs = levels[1]
    for key, value in zip(pairs[::2], pairs[1::2], strict=False):
        if type(key) is str:
            dump[key] = value
    if len(levels) > 2 and len(pairs) >= 2 and pairs[-2] == "entries" and type(pairs[-1]) is list:
        # The last record may be the one that was being written.
        partial = [item for item in levels[2] if item is SKIPPED or (type(item) is dict and item)]
        dump["entries"] = [*pairs[-1], *partial]
    return dump if type(dump.get("entries")) is list or "pg_status" in dump else None


def _table(
    dump: object,
    source: str,
    look: int,
    builder: TableBuilder,
    entry_reader: EntryReader,
    templates: EntryTemplates | None,
    caveats: list[str],
    *,
    cut_short: bool,
) -> RecorderTable:
    if type(dump) is not dict:
        raise Unreadable(f"it holds a {type(dump).__name__}, not a flight recorder's dump")
    entries = dump.get("entries", [])
    if type(entries) is not list or not dump.keys() & {"entries", "pg_config", "pg_status"}:
        raise Unreadable("it has neither entries nor process groups: it is not a flight recorder's dump")
    dropped = _add_entries(entries, entry_reader, templates)
    caveats += dropped
    kinds = builder.kinds
    groups, status = _groups(dump.get("pg_config")), _status(dump.get("pg_status"))
    default = _only_default(kinds, status)
    comm_lib_version = text(dump.get("comm_lib_version")) or text(dump.get("nccl_version"))
    return builder.table(
        source=source,
        look=look,
        backend=_backend(kinds, source, comm_lib_version),
        version=text(dump.get("version")),
        comm_lib_version=comm_lib_version,
        groups=_with_default(groups, default),
        status=status,
        caveats=tuple(caveats),
        cut_short=cut_short or bool(dropped),
    )


def _add_entries(entries: list[object], entry_reader: EntryReader, templates: EntryTemplates | None) -> list[str]:
    bad = Counter[str]()
    ordinal = 0
    for skipped, entry in runs(entries):
        if skipped and templates is not None:
            templates.add_next(skipped)
        ordinal += skipped
        if entry is SKIPPED:
            continue
        try:
            entry_reader.add(entry, ordinal)
        except BadEntry as error:
            bad[str(error)] += 1
        ordinal += 1
    return [f"{count} of {len(entries)} entries dropped: the entry {why}" for why, count in bad.most_common(5)]


def _backend(kinds: list[Any], source: str, comm_lib_version: str) -> str:
    named: Counter[str] = Counter(kind.backend for kind in kinds if kind.backend)
    if named:
        return named.most_common(1)[0][0]
    for backend in ("nccl", "gloo", "xccl", "hccl", "mpi", "ucc"):
        if backend in source.lower():
            return backend
    return "nccl" if comm_lib_version else ""


def _groups(config: object) -> tuple[RecordedGroup, ...]:
    if type(config) is not dict:
        return ()
    groups = []
    left = _MAXIMUM_MEMBERS
    for key, value in list(config.items())[:_MAXIMUM_GROUPS]:
        name, description = text(key), ""
        ranks: tuple[int, ...] = ()
        if type(value) is dict:
            name = text(value.get("name")) or name
            description = text(value.get("desc"))
            ranks = _ranks(value.get("ranks")) if left > 0 else ()
            left -= len(ranks)
        groups.append(RecordedGroup(name, description, ranks))
    return tuple(groups)


def _ranks(value: object) -> tuple[int, ...]:
    """`ranks` is text, "[0, 1, 2, 3]"; a list in dumps that other tools wrote."""
    if type(value) is str:
        return _ranks_of_short(value) if len(value) <= _SHORT_TEXT else _ranks_of(value)
    if type(value) in (list, tuple):
        numbers = [integer(number) for number in value]  # type: ignore[attr-defined]
        return tuple(number for number in numbers if number is not None and number >= 0)
    return ()


def _ranks_of(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"[0-9]+", text))) if _RANKS.fullmatch(text) else ()


_ranks_of_short = lru_cache(maxsize=64)(_ranks_of)  # the dumps of a job say the same of its groups


def _only_default(kinds: list[Any], status: tuple[GroupStatus, ...]) -> str | None:
    """The name of the default group where no other was used; else None. "" in gloo's configuration is whichever group
    was made last, with ranks counted within it: torch 2.13 tells none there, 2.14 those of a pair as "[0, 1]"."""
    names = {kind.group_name for kind in kinds}
    default = any(kind.group_description == "default_pg" for kind in kinds)
    return names.pop() if default and len(names) == 1 and len(status) <= 1 else None


def _with_default(groups: tuple[RecordedGroup, ...], default: str | None) -> tuple[RecordedGroup, ...]:
    """gloo's configuration names its groups "", and the entries "0": give the default group the entries' name."""
    if default is None or any(group.name == default and group.ranks for group in groups):
        return groups
    return tuple(
        RecordedGroup(default, "default_pg", group.ranks) if group.name == "" and group.ranks else group
        for group in groups
    )


def _status(status: object) -> tuple[GroupStatus, ...]:
    if type(status) is not dict:
        return ()
    found = []
    for key, value in list(status.items())[:_MAXIMUM_GROUPS]:
        pg_id = integer(key)
        if pg_id is None or type(value) is not dict:
            continue
        enqueued, started, completed = (
            integer(value.get(f"last_{what}_collective")) for what in ("enqueued", "started", "completed")
        )
        found.append(
            GroupStatus(
                pg_id,
                -1 if enqueued is None else enqueued,
                -1 if started is None else started,
                -1 if completed is None else completed,
            )
        )
    return tuple(sorted(found, key=lambda each: each.pg_id))
