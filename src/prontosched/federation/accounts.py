"""The users of a bus: one account of NATS for each registered key, with as few rights as it needs.

Covers: the part of a server's configuration that follows from the key ring. JetStream answers to
whatever subject a request names, and does not ask whether the sender might write there. In one
shared account a node could so make it write the global view. Here the store lies in an account
without users. Every other account imports from it the subjects that its one user needs, so an
answer can reach nothing but these. Inboxes are private to an account.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prontosched.errors import FederationError
from prontosched.federation.link import DECISIONS, LEASES, SCHEMAS, SUMMARIES, TOPICS, VIEWS
from prontosched.federation.signing import AGGREGATOR, NODE, Registered
from prontosched.federation.tree import ROOT, Tree, child_pattern, place

STORE = "PRONTO"
# What stands in a private account for `$JS.API`, which the server keeps for its own.
API = "pronto.api"

Keys = dict[str, list[str]]


def server_accounts(lines: Sequence[Registered], group: str, tree: Tree) -> str:
    """Return the accounts of a nats-server, one for each registered key and one for the store."""
    users: dict[str, list[Registered]] = {}
    for line in lines:
        if not line.nkey:
            raise FederationError(
                f"{line.grant.role} {line.grant.place or 'root'} must have a user's key (U…) after its own, "
                "got none: register the whole line that `pronto federation keys` prints"
            )
        users.setdefault(line.nkey, []).append(line)
    subjects = Subjects(group)
    accounts = [_account(nkey, owned, subjects, tree) for nkey, owned in users.items()]
    exports = [
        *(f'{{service: "{subjects.key(topic)}"}}' for topic in TOPICS),
        *(f'{{stream: "{subjects.live(topic)}"}}' for topic in TOPICS),
        *(f'{{service: "{subjects.api(verb, topic)}"}}' for topic in TOPICS for verb in ("INFO", "CREATE")),
        *(f'{{service: "{subjects.api("GET", topic)}"}}' for topic in TOPICS),
    ]
    store = f"  {STORE}: {{\n    jetstream: enabled\n    exports: {_list(exports)}\n  }}"
    return "\n".join(["accounts: {", store, *accounts, "}", ""])


class Subjects:
    """The names of one group at the server: a bucket for each topic, its stream and its subjects."""

    def __init__(self, group: str) -> None:
        self.group = group

    def bucket(self, topic: str) -> str:
        """Return the key-value bucket of a topic."""
        return f"pronto-{self.group}-{topic}"

    def stream(self, topic: str) -> str:
        """Return the stream behind that bucket."""
        return f"KV_{self.bucket(topic)}"

    def key(self, topic: str, key: str = ">") -> str:
        """Return the subject of a key."""
        return f"$KV.{self.bucket(topic)}.{key}"

    def live(self, topic: str, key: str = ">") -> str:
        """Return where the store tells that it took a value, which nobody else can."""
        return f"pronto.live.{self.bucket(topic)}.{key}"

    def api(self, verb: str, topic: str, key: str = ">", prefix: str = "$JS.API") -> str:
        """Return the subject by which the store is asked: INFO, CREATE, or GET for a key."""
        if verb == "GET":
            return f"{prefix}.DIRECT.GET.{self.stream(topic)}.{self.key(topic, key)}"
        return f"{prefix}.STREAM.{verb}.{self.stream(topic)}"


def _account(nkey: str, lines: Iterable[Registered], subjects: Subjects, tree: Tree) -> str:
    writes: Keys = {LEASES: ["clock.*"]}
    reads: Keys = {LEASES: ["clock.*"], SCHEMAS: ["*"]}
    names, creates = [], False
    for line in lines:
        role, where = line.grant
        names.append(f"{role} {where or 'root'}")
        creates |= role == AGGREGATOR and line.grant.covers(ROOT)
        for keys, found in zip((writes, reads), _rights(line, tree), strict=True):
            for topic, more in found.items():
                keys[topic] = list(dict.fromkeys([*keys.get(topic, []), *more]))
    # What is read live; leases are only asked for.
    hears = [subjects.live(topic, key) for topic, keys in reads.items() for key in keys if topic != LEASES]
    says = [subjects.key(topic, key) for topic, keys in writes.items() for key in keys]
    asks: list[tuple[str, str, str]] = [("INFO", topic, ">") for topic in TOPICS]
    asks += [("CREATE", topic, ">") for topic in TOPICS if creates]
    # A star stands for one part of a subject only at the end of a list of all that follow.
    asks += [("GET", topic, key.replace("*", ">")) for topic, keys in reads.items() for key in keys]
    asks = list(dict.fromkeys(asks))
    imports = [
        *(f'{{service: {{account: {STORE}, subject: "{subject}"}}}}' for subject in says),
        *(f'{{stream: {{account: {STORE}, subject: "{subject}"}}}}' for subject in hears),
        *(
            f'{{service: {{account: {STORE}, subject: "{subjects.api(*ask)}"}}, to: "{subjects.api(*ask, API)}"}}'
            for ask in asks
        ),
    ]
    publish = [f'"{subject}"' for subject in (*says, *(subjects.api(*ask, API) for ask in asks))]
    subscribe = [f'"{subject}"' for subject in ("_INBOX.>", *hears)]
    return (
        f"  # {', '.join(names)}\n  U{nkey[-12:]}: {{\n    users: [{{nkey: {nkey}, permissions: {{\n"
        f"      publish: {_list(publish, 6)}\n      subscribe: {_list(subscribe, 6)}\n    }}}}]\n"
        f"    imports: {_list(imports)}\n  }}"
    )


def _rights(line: Registered, tree: Tree) -> tuple[Keys, Keys]:
    """Return what the key of a line writes and reads, by topic."""
    role, where = line.grant
    pattern = line.grant.pattern
    below = "" if where in (ROOT, "*") else f"{place(where.removesuffix('/*'))}."
    if role == NODE:
        summary = f"{below}>" if pattern else tree.key(where)
        writes = {
            SUMMARIES: [summary],
            SCHEMAS: ["*"],
            DECISIONS: [f"{below}>" if pattern else place(where)],
            LEASES: ["refusals.>"],
        }
        return writes, {SUMMARIES: [summary], VIEWS: ["*"], LEASES: ["refusals.>"]}
    if role != AGGREGATOR:  # a viewer
        return {}, {SUMMARIES: [">"], DECISIONS: [">"], VIEWS: ["*"]}
    seats = f"seats.{below}>" if pattern else f"seats.{place(where)}"
    writes = {SCHEMAS: ["*"], LEASES: [seats]}
    reads = {SUMMARIES: [f"{below}>" if pattern else child_pattern(where)], LEASES: [seats]}
    if line.grant.covers(ROOT):
        writes[VIEWS] = reads[VIEWS] = ["*"]
    if where != ROOT:
        own = f"{below}>" if pattern else tree.key(where)
        writes[SUMMARIES] = [own]
        reads[SUMMARIES] += [own]
    return writes, reads


def _list(items: Iterable[str], indent: int = 4) -> str:
    inner = " " * (indent + 2)
    return "[\n" + "".join(f"{inner}{item}\n" for item in items) + " " * indent + "]"
