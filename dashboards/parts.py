"""What the dashboards share: variables, links, and panels that ask Prometheus one question each."""

from collections.abc import Mapping, Sequence

from grafana_foundation_sdk.builders import bargauge, common, prometheus, stat, statetimeline, table, timeseries
from grafana_foundation_sdk.builders import dashboard as board
from grafana_foundation_sdk.models import common as common_model
from grafana_foundation_sdk.models import dashboard as model

TAG = "stallwatch"
DATASOURCE = model.DataSourceRef(type_val="prometheus", uid="${datasource}")

# A rank's state as a number, for a picture over time; what is worse is higher.
STATES = (
    ("stepping", "green"),
    ("phase", "blue"),
    ("starting", "light-blue"),
    ("ending", "text"),
    ("waiting", "yellow"),
    ("unknown", "purple"),
    ("suspect", "orange"),
    ("stopped", "red"),
    ("gone", "dark-red"),
)

Panel = timeseries.Panel | statetimeline.Panel | stat.Panel | table.Panel | bargauge.Panel


def dashboard(uid: str, title: str, description: str, *variables: board.QueryVariable) -> board.Dashboard:
    """An empty dashboard with the data source, its variables and the links to its siblings."""
    made = (
        board.Dashboard(title)
        .uid(uid)
        .description(description)
        .tags([TAG])
        .timezone("browser")
        .refresh("10s")
        .time("now-30m", "now")
        .tooltip(model.DashboardCursorSync.CROSSHAIR)
        .readonly()
        .link(
            board.DashboardLink("stallwatch")
            .type(model.DashboardLinkType.DASHBOARDS)
            .tags([TAG])
            .include_vars(True)
            .keep_time(True)
        )
        .with_variable(board.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
    )
    for variable in variables:
        made = made.with_variable(variable)
    return made


def variable(name: str, label: str, metric: str, source: str, selector: str = "") -> board.QueryVariable:
    """Values of a label of a metric; all of them unless somebody chooses.

    "All" of a variable without a selector matches everything; with one, only what the selector leaves.
    """
    made = (
        board.QueryVariable(name)
        .label(label)
        .datasource(DATASOURCE)
        .query({"query": f"label_values({metric}{{{selector}}}, {source})", "refId": name})
        .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(model.VariableSort.NUMERICAL_ASC)
        .multi(True)
        .include_all(True)
        .current(model.VariableOption(selected=True, text="All", value="$__all"))
    )
    return made if selector else made.all_value(".*")


def query(expression: str, legend: str = "", ref: str = "A", *, now: bool = False) -> prometheus.Dataquery:
    """A range query; with `now` the latest values as a table."""
    made = prometheus.Dataquery().expr(expression).ref_id(ref).datasource(DATASOURCE).legend_format(legend or "__auto")
    return made.instant().format("table") if now else made.range()  # type: ignore[arg-type]


def happened(counter: str, window: str) -> str:
    """How much a counter rose in a window, its first appearance included. `increase` alone reads 0 after that: a series
    that begins with 1 has not risen since, and so it is asked last."""
    return f"({counter} unless {counter} offset {window}) or increase({counter}[{window}])"


def incidents_annotation(selector: str) -> board.AnnotationQuery:
    """Marks on every graph while an incident is open; generate.py adds how Prometheus' plugin words them."""
    expression = (
        "max by (training_job, owner, incident_id, cause, culprit_ranks) "
        f'(stallwatch_incident_info{{{selector}, state="open"}})'
    )
    made = board.AnnotationQuery().name("Incidents").datasource(DATASOURCE).enable(True).icon_color("red")
    return made.expr(expression)


def graph(
    title: str, description: str, unit: str, *queries: prometheus.Dataquery, width: int = 12, height: int = 8
) -> timeseries.Panel:
    made = (
        timeseries.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .unit(unit)
        .span(width)
        .height(height)
        .line_width(1)
        .fill_opacity(0)
        .show_points(common_model.VisibilityMode.NEVER)
        .tooltip(
            common.VizTooltipOptions()
            .mode(common_model.TooltipDisplayMode.MULTI)
            .sort(common_model.SortOrder.DESCENDING)
        )
        .legend(
            common.VizLegendOptions()
            .display_mode(common_model.LegendDisplayMode.LIST)
            .placement(common_model.LegendPlacement.BOTTOM)
            .show_legend(True)
        )
    )
    for one in queries:
        made = made.with_target(one)
    return made


def states(title: str, description: str, selector: str, by: str, legend: str, height: int = 10) -> statetimeline.Panel:
    """A band for each rank in the colours of its states."""
    expression = " or ".join(
        f'(stallwatch_rank_state{{{selector}, state="{state}"}} * {number})' for number, (state, _) in enumerate(STATES)
    )
    options = {
        str(number): model.ValueMappingResult(text=state, color=color, index=number)
        for number, (state, color) in enumerate(STATES)
    }
    return (
        statetimeline.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .span(24)
        .height(height)
        .mappings([model.ValueMap(options=options)])
        .show_value(common_model.VisibilityMode.NEVER)
        .row_height(0.9)
        .line_width(0)
        .fill_opacity(80)
        .with_target(query(f"max by ({by}) ({expression})", legend))
    )


def number(
    title: str,
    description: str,
    unit: str,
    expression: str,
    *,
    bad_from: float | None = None,
    good_from: float | None = None,
    width: int = 4,
    none: str = "0",
    link: str = "",
) -> stat.Panel:
    """One number; red from `bad_from` on, or red below `good_from`."""
    steps = [model.Threshold(value=None, color="red" if good_from is not None else "green")]
    if bad_from is not None:
        steps.append(model.Threshold(value=bad_from, color="red"))
    if good_from is not None:
        steps.append(model.Threshold(value=good_from, color="green"))
    made = (
        stat.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .unit(unit)
        .span(width)
        .height(4)
        .no_value(none)
        .graph_mode(common_model.BigValueGraphMode.AREA)
        .color_mode(common_model.BigValueColorMode.VALUE)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .thresholds(board.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(steps))
        .with_target(query(expression))
    )
    return made.links([board.DashboardLink("Open").type(model.DashboardLinkType.LINK).url(link)]) if link else made


def listing(
    title: str,
    description: str,
    queries: Sequence[prometheus.Dataquery],
    columns: Mapping[str, str],
    *,
    width: int = 24,
    height: int = 7,
    links: Mapping[str, tuple[str, str]] | None = None,
    units: Mapping[str, str] | None = None,
    none: str = "none",
) -> table.Panel:
    """A table of labels, and of values named "Value" (one query) or "Value #A": `columns` maps them to headings.

    `links` gives a column (title, URL), `units` its unit.
    """
    made = table.Panel().title(title).description(description).datasource(DATASOURCE).span(width).height(height)
    made = made.no_value(none).show_header(True)
    for one in queries:
        made = made.with_target(one)
    if len(queries) > 1:
        made = made.with_transformation(model.DataTransformerConfig(id_val="merge", options={}))
    made = made.with_transformation(
        model.DataTransformerConfig(id_val="filterFieldsByName", options={"include": {"names": list(columns)}})
    ).with_transformation(
        model.DataTransformerConfig(
            id_val="organize",
            options={
                "renameByName": dict(columns),
                "indexByName": {name: place for place, name in enumerate(columns)},
                "excludeByName": {},
            },
        )
    )
    for column, (link_title, url) in (links or {}).items():
        values: list[object] = [{"title": link_title, "url": url}]
        made = made.override_by_name(columns[column], [model.DynamicConfigValue(id_val="links", value=values)])
    for column, unit in (units or {}).items():
        made = made.override_by_name(columns[column], [model.DynamicConfigValue(id_val="unit", value=unit)])
    return made
