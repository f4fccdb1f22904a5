"""Puts what the files say together as one incident: one value per rank and node, contradictions named."""

from collections import Counter, defaultdict
from typing import Any, Final

import msgspec

from stallwatch.bundle.bounds import MOST_CAVEATS, MOST_RANKS, is_rank, is_world
from stallwatch.bundle.deduplicate import Parsed, older_incidents
from stallwatch.bundle.description import Description
from stallwatch.bundle.discovery import Found
from stallwatch.bundle.merging import merged_node, merged_rank, with_world
from stallwatch.bundle.numbered_logs import is_named_by_pid, of_no_rank, ranks_of_logs
from stallwatch.bundle.other_runs import dumps_of_other_runs
from stallwatch.bundle.rendezvous import others_of_job
from stallwatch.formats.log_folders import of_path, run_of
from stallwatch.formats.recorder_table import CallSites
from stallwatch.model.evidence import Evidence, HeldBack, NodeEvidence, RankEvidence
from stallwatch.model.incident import Incident
from stallwatch.model.log_event import LogEvent
from stallwatch.model.reading import Known
from stallwatch.model.rendezvous import NO_MEETING, Rendezvous
from stallwatch.model.snapshot import JobKey, NodeSnapshot
from stallwatch.model.summary import RankSummary

UNKNOWN_HOST: Final = "unknown"


class Assembly:
    """Collects parsed files; `evidence` makes one value of them, the same whatever the order."""

    def __init__(self, caveats: list[str]) -> None:
        self.caveats = caveats
        self._descriptions: dict[str, Description] = {}
        self._parts: dict[int, dict[str, list[Parsed]]] = defaultdict(lambda: defaultdict(list))
        self._nodes: dict[str, list[Parsed]] = defaultdict(list)
        self._snapshots: list[tuple[str, NodeSnapshot]] = []
        self._loose_logs: list[Parsed] = []
        self._log_nodes = 1
        self._incidents: dict[str, Incident] = {}
        self._stacks = CallSites()
        self._summaries: dict[tuple[int, str], RankSummary] = {}

    def add(self, file: Found, kind: str, value: Any) -> None:
        """Take one parsed file of a kind into its rank or node."""
        if kind == "report":
            for rank, stacks in value.stacks:
                self.add(file._replace(rank=rank, rank_by_number=False), "stacks", stacks)
            self.add(file, "log", value.log)
            return
        parsed = Parsed(file, kind, value)
        if kind == "log":
            parsed = _with_source(parsed)
            if parsed.value.kernel:
                self._nodes[file.host or UNKNOWN_HOST].append(parsed)
        if kind == "description":
            self._descriptions[file.bundle] = value
        elif kind == "incident":
            self._incidents[file.bundle] = value
        elif kind == "timeline":
            self._snapshots.append((file.bundle, value))
        elif kind in ("gpus", "ras", "kernel_log"):
            self._nodes[file.host or UNKNOWN_HOST].append(parsed)
        elif kind == "log" and (file.rank is None or file.rank_by_number):
            self._loose_logs.append(parsed)
        elif file.rank is None or (file.rank_by_number and is_named_by_pid(file.rank, value)):
            self.caveats.append(f"{file.source}: {of_no_rank(kind)}")
        else:
            self._parts[file.rank][file.bundle].append(parsed)

    def add_summary(self, rank: int, bundle: str, summary: RankSummary) -> None:
        """Take a rank's summary that was reduced while its dumps were read."""
        self._summaries[rank, bundle] = summary

    def evidence(self) -> Evidence:
        """All that was added, as the evidence of one incident. Call it once, at the end."""
        self._give_numbered_logs()
        self._count_nodes_of_logs()
        self._keep_one_incident()
        self._keep_one_run()
        events = self._spread_log_events()
        self._add_heartbeats_of_timeline()
        ranks = []
        for rank in sorted({*self._parts, *(rank for rank in events if rank is not None)}):
            ranks.append(self._rank(rank, events.get(rank, [])))
        world_size = self._world_size(ranks)
        world = tuple(range(world_size)) if world_size else ()
        ranks = [with_world(rank, world) for rank in ranks]
        description = self._merged()
        return Evidence(
            world_size=world_size,
            backend=description.backend or _backend(ranks),
            ranks=tuple(ranks),
            nodes=self._node_evidence(),
            caveats=_shown(self.caveats),
            incident_id=description.incident_id,
            training_job=description.training_job,
            epoch=description.epoch,
            looks=max((look for rank in ranks for look in _looks(rank)), default=1),
            log_events=tuple(events.get(None, ())),
            log_nodes=self._log_nodes,
            meeting=self._meeting(description, world_size),
            held_back=self._held_back(),
            went_on=self._went_on(),
        )

    def _give_numbered_logs(self) -> None:
        ranks = ranks_of_logs({parsed.file.source: parsed.value for parsed in self._loose_logs})
        for parsed in self._loose_logs:
            if (rank := ranks.get(parsed.file.source)) is not None and is_rank(rank):
                self._parts[rank][parsed.file.bundle].append(parsed)
        self._loose_logs = [parsed for parsed in self._loose_logs if parsed.file.source not in ranks]

    def _count_nodes_of_logs(self) -> None:
        """Where logs are of several nodes, torchrun's folders tell local ranks, and no ranks."""
        of_folders = [
            (rank, bundle, part)
            for rank, bundles in self._parts.items()
            for bundle, parts in bundles.items()
            for part in parts
            if part.kind == "log" and of_path(part.file.source)
        ]
        logs = [*self._loose_logs, *(part for _, _, part in of_folders)]
        writers = {run_of(part.file.source) for part in logs if part.value.by_local_rank or of_path(part.file.source)}
        self._log_nodes = max((len(writers), *(part.value.nodes for part in logs)), default=1)
        if self._log_nodes > 1:
            for rank, bundle, part in of_folders:
                self._parts[rank][bundle].remove(part)
                self._loose_logs.append(part)

    def _keep_one_incident(self) -> None:
        """Folders that tell of the same ranks are incidents of their own: the newest stays, and what fits beside it."""
        for dropped, told in older_incidents(self._parts, self._descriptions):
            self.caveats += told
            self._descriptions.pop(dropped, None)
            self._incidents.pop(dropped, None)
            for parts in self._parts.values():
                parts.pop(dropped, None)
            for host, found in self._nodes.items():
                self._nodes[host] = [part for part in found if part.file.bundle != dropped]
            self._snapshots = [(bundle, snapshot) for bundle, snapshot in self._snapshots if bundle != dropped]
        self._parts = defaultdict(lambda: defaultdict(list), {r: parts for r, parts in self._parts.items() if parts})

    def _keep_one_run(self) -> None:
        """Of dumps that lie beside no description nobody knows when they were written."""
        loose = {} if self._descriptions else {
            rank: [part.value for part in parts[""] if part.kind == "recorder"]
            for rank, parts in self._parts.items() if "" in parts
        }  # fmt: skip
        for rank, apart in dumps_of_other_runs(loose).items():
            kept = self._parts[rank][""]
            names = ", ".join(part.file.source for part in kept if part.kind == "recorder")
            self._parts[rank][""] = [part for part in kept if part.kind != "recorder"]
            self._summaries.pop((rank, ""), None)
            self.caveats.append(
                f"rank {rank}: {names} is not used: its calls were made {apart}, so it is of another run (or the clock "
                "of its host is wrong by that much)"
            )

    def _held_back(self) -> HeldBack | None:
        """What detection had found of slow ranks when the incident was kept."""
        findings = [finding for incident in self._incidents.values() for finding in incident.findings]
        slow = [one for one in findings if one.detector == "slow" and one.ranks and all(map(is_rank, one.ranks))]
        if len(self._incidents) != 1 or not slow:
            return None
        found = slow[0]
        return HeldBack(
            found.ranks, found.reason, found.slowness, found.stage == "confirmed", found.from_start, found.grows
        )

    def _went_on(self) -> tuple[int, ...]:
        """Who began to stand long after others had left, as detection had it when the incident was kept."""
        said = {f.went_on for incident in self._incidents.values() for f in incident.findings if f.went_on}
        return said.pop() if len(self._incidents) == 1 and len(said) == 1 else ()

    def _meeting(self, description: Description, world_size: int | None) -> Rendezvous:
        """What the daemon's last snapshot tells of ranks of this job that are in none of the given folders."""
        if len(self._snapshots) != 1 or len(self._descriptions) != 1 or not description.epoch or not world_size:
            return NO_MEETING
        owner = description.owner
        ranks = [r for r in self._snapshots[0][1].ranks if owner is None or r.job.owner == owner]
        return others_of_job(ranks, description.training_job, description.epoch, world_size)

    def _rank(self, rank: int, events: list[LogEvent]) -> RankEvidence:
        bundle, parts = self._chosen(rank)
        description = self._descriptions.get(bundle, Description())
        summary = self._summary(rank, bundle, description.captured_at_ns.get(rank))
        return merged_rank(rank, parts, description, events, summary, self._stacks, self.caveats)

    def _summary(self, rank: int, bundle: str, captured_at_ns: int | None) -> RankSummary | None:
        """None, too, when parts of it lie in the bundle and others beside: one summary does not tell of both."""
        found = [self._summaries[rank, b] for b in {bundle, ""} if (rank, b) in self._summaries]
        return msgspec.structs.replace(found[0], captured_at_ns=captured_at_ns) if len(found) == 1 else None

    def _chosen(self, rank: int) -> tuple[str, list[Parsed]]:
        """The bundle that tells of this rank, and its parts; loose files belong to every bundle."""
        by_bundle = self._parts.get(rank, {})
        bundle = next((b for b in by_bundle if b), "")
        if not bundle and len(self._descriptions) == 1:
            bundle = next(iter(self._descriptions))
        return bundle, [*by_bundle.get(bundle, []), *(by_bundle.get("", []) if bundle else [])]

    def _spread_log_events(self) -> dict[int | None, list[LogEvent]]:
        """Events of logs that several ranks share, by the rank that each line names."""
        events: dict[int | None, list[LogEvent]] = defaultdict(list)
        for parsed in sorted(self._loose_logs, key=lambda parsed: parsed.file.source):
            for event in parsed.value.events:
                events[event.rank if is_rank(event.rank) else None].append(event)
        return events

    def _add_heartbeats_of_timeline(self) -> None:
        """Where a rank's own record was not captured, the daemon's snapshots hold it."""
        for _, snapshot in self._snapshots:
            for sample in getattr(snapshot, "ranks", ()):
                bundles = self._parts.get(sample.rank)
                if not bundles or not isinstance(sample.heartbeat, Known):
                    continue
                if not any(_is_of(sample.job, d) for d in self._descriptions.values()):
                    continue  # another job's rank of the same number
                parts = [part for bundle in sorted(bundles) for part in bundles[bundle]]
                if any(part.kind == "heartbeat" for part in parts):
                    continue
                beside = parts[0].file
                file = Found("heartbeat", beside.path, "timeline.jsonl", beside.bundle, sample.rank, None, 1, 0)
                bundles[beside.bundle].append(Parsed(file, "heartbeat", sample.heartbeat.value))

    def _world_size(self, ranks: list[RankEvidence]) -> int | None:
        said = self._believed({d.world_size for d in self._descriptions.values() if d.world_size})
        if len(said) > 1:
            self.caveats.append(f"the given folders disagree about the world size: {', '.join(map(str, sorted(said)))}")
        if said:
            return max(said)
        sizes = [h.world_size for rank in ranks for h in rank.heartbeat if h.world_size > 0]
        sizes += [
            len(group.ranks)
            for rank in ranks
            for recorder in rank.recorders
            for group in recorder.groups
            if group.description == "default_pg" and group.ranks
        ]
        return max(self._believed(set(sizes)), default=None)

    def _believed(self, sizes: set[int]) -> set[int]:
        for size in sorted(size for size in sizes if not is_world(size)):
            self.caveats.append(f"a world of {size} ranks is not believed: at most {MOST_RANKS} are")
        return {size for size in sizes if is_world(size)}

    def _merged(self) -> Description:
        """The first description that says it, for what must be one thing in all of them."""
        ordered = [self._descriptions[bundle] for bundle in sorted(self._descriptions)]

        def first(field: str) -> Any:
            return next((getattr(d, field) for d in ordered if getattr(d, field) is not None), None)

        return Description(
            backend=first("backend"),
            incident_id=first("incident_id"),
            training_job=first("training_job"),
            epoch=first("epoch"),
            owner=first("owner"),
        )

    def _node_evidence(self) -> tuple[NodeEvidence, ...]:
        ranks: dict[str, set[int]] = defaultdict(set)
        for description in self._descriptions.values():
            for host, members in description.nodes.items():
                ranks[host].update(members)
        return tuple(
            merged_node(host, tuple(sorted(ranks[host])), self._nodes.get(host, []))
            for host in sorted({*ranks, *self._nodes})
        )


def _shown(caveats: list[str]) -> tuple[str, ...]:
    shown = sorted(caveats)[:MOST_CAVEATS]
    more = len(caveats) - len(shown)
    return (*shown, f"and {more} more of these") if more else tuple(shown)


def _with_source(parsed: Parsed) -> Parsed:
    """Each event with the file that it stands in."""
    tail, source = parsed.value, parsed.file.source
    return Parsed(
        parsed.file,
        parsed.kind,
        msgspec.structs.replace(
            tail,
            events=tuple(msgspec.structs.replace(event, source=source) for event in tail.events),
            kernel=tuple(msgspec.structs.replace(event, source=source) for event in tail.kernel),
        ),
    )


def _is_of(job: JobKey, description: Description) -> bool:
    said = (description.training_job, description.epoch, description.owner)
    told = (job.training_job, job.epoch, job.owner)
    return all(value is None or value == here for value, here in zip(said, told, strict=True))


def _looks(rank: RankEvidence) -> list[int]:
    looks = [recorder.look for recorder in rank.recorders]
    return [*looks, *(stacks.look for stacks in rank.stacks), *(process.look for process in rank.processes)]


def _backend(ranks: list[RankEvidence]) -> str | None:
    named = Counter(recorder.backend for rank in ranks for recorder in rank.recorders if recorder.backend)
    # A job with both has its gradients in NCCL.
    return "nccl" if "nccl" in named else max(sorted(named), key=lambda name: named[name], default=None)
