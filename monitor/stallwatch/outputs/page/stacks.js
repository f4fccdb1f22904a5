// The merged stacks: outermost frame first, and where ranks part the fewest come first.
"use strict";
function frameLine(node) {
  const line = node.line === null ? "" : `:${node.line}`;
  const place = element("span", "soft", shortPath(node.file) + line);
  place.title = node.file + line;
  return element("span", "frame", element("span", "ranks", node.ranks), node.function, " ", place);
}
// Ways into the script and wrappers around torch's functions part nobody (stack_tree.py leaves out the same).
const WRAPPER = new RegExp("<frozen (?:runpy|importlib\\._bootstrap\\w*)>|(?:^|/)runpy\\.py|/stallwatch/(?:run\\.py|hook/\\w+\\.py)" +
  "|/torch/(?:distributed/(?:c10d_logger|elastic/multiprocessing/errors/__init__)|utils/_contextlib|_dynamo/(?:eval_frame|external_utils)|amp/autocast_mode)\\.py");
const WRAPPING_CALL = /^(?:_(?:wrapped_)?call_impl|_call_with_frames_removed)$/;
function unwrapped(node) {
  const children = node.children.flatMap(child => {
    const whole = child.children.length && child.children.reduce((sum, one) => sum + one.count, 0) === child.count;
    const wraps = WRAPPER.test(child.file) || (child.file && WRAPPING_CALL.test(child.function));
    return wraps && whole ? unwrapped(child).children : [unwrapped(child)];
  });
  return {...node, children};
}
function stackItems(node, culprits) {
  // A run of frames that the same ranks share is one column; only where ranks part does it step to the right.
  const run = [node];
  while (run[run.length - 1].children.length === 1 && run[run.length - 1].children[0].ranks === node.ranks)
    run.push(run[run.length - 1].children[0]);
  const last = run[run.length - 1];
  const outlier = within(node.ranks, culprits) ? "outlier" : "";
  const lines = run.map(each => element("li", outlier, frameLine(each)));
  const branches = last.children.map(child => stackItems(child, culprits));
  branches.slice(1).forEach(([first]) => first.classList.add("parts"));  // ranks that part are told apart at a glance
  const children = element("ul", "", ...branches.flat());
  if (last.children.length) lines[lines.length - 1].append(children);
  if (lines.length > 6) {
    const hidden = lines.splice(2, lines.length - 4);
    lines.splice(2, 0, element("li", "", element("details", "",
      element("summary", "", `${hidden.length} frames more`), element("ul", "", ...hidden))));
  }
  return lines;
}
function stacks(incident, verdict) {
  const culprits = new Set(verdict ? verdict.culprits : []);
  const scroll = element("div", "stacks mono", element("ul", "", ...stackItems(unwrapped(incident.stacks), culprits)));
  scroll.tabIndex = 0;  // long lines scroll by keyboard too
  scroll.setAttribute("role", "region");
  scroll.setAttribute("aria-label", "Merged stacks");
  return folded(incident, "stacks", true, element("summary", "", "Stacks of all ranks, merged; where they part, the fewest first"), scroll);
}
