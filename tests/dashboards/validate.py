"""`make validate-dashboards`: the built dashboards, checked by TypeScript against the types that Grafana publishes.

The packages come from npm. Each dashboard must also be refused with a misspelt key, of its own and of a panel's
options. Without npm, nothing is validated.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.environments import ROOT

PLACE = ROOT / ".venv-for-dashboards"
PACKAGES = ("@grafana/schema@11.6.0", "typescript@5.9")
"""Types of the version of Grafana for which the dashboards are built."""
BUILT = ROOT / "dashboards" / "grafana"
PANELS = {
    "timeseries": "TimeSeriesPanelCfg",
    "table": "TablePanelCfg",
    "stat": "StatPanelCfg",
    "heatmap": "HeatmapPanelCfg",
    "bargauge": "BarGaugePanelCfg",
    "text": "TextPanelCfg",
}
"""Type of a panel -> the module that has the types of its options."""

TYPES = "./node_modules/@grafana/schema/dist/esm/raw/composable/{folder}/panelcfg/x/{module}_types.gen"
PLAIN = """
type Plain<T> = T extends string ? `${T}` : T extends (infer Item)[] ? Plain<Item>[]
  : T extends object ? { [Key in keyof T]: Plain<T[Key]> } : T;
"""
"""A type as JSON has it: the text of an enumeration's member instead of the member."""
MISSPELT = (('"refresh":', '"refesh":'), ('"calcs":', '"calc":'), ('"content":', '"contents":'))
"""Keys of a dashboard, of the options of most panels, and of those of a page of text."""
TSC = ("node_modules/typescript/bin/tsc", "--noEmit", "--strict", "--skipLibCheck", "--module", "preserve")


def main() -> int:
    if not installed():
        print(f"dashboards are not validated: {' '.join(PACKAGES)} does not install from npm")
        return 0
    programs = dict(program for path in sorted(BUILT.rglob("*.json")) for program in programs_of(path))
    errors = compiled(programs)
    failed = [name for name in programs if bool(errors.get(name)) != ("misspelt" in name)]
    for name in failed:
        print(f"{name} FAILED: {errors.get(name, 'the misspelt key is accepted')}")
    boards = [name for name in programs if "misspelt" not in name]
    print(f"{len(boards)} dashboards, {len(programs) - len(boards)} misspelt ones: {len(failed)} failed")
    return 1 if failed else 0


def installed() -> bool:
    if (PLACE / "node_modules" / "typescript").exists():
        return True
    PLACE.mkdir(exist_ok=True)
    command = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(PLACE), *PACKAGES]
    try:
        return not subprocess.run(command, check=False).returncode
    except FileNotFoundError:
        return False


def programs_of(path: Path) -> Iterator[tuple[str, str]]:
    """Yield names and texts: the dashboard, and the same with each misspelling that it can have."""
    text = path.read_text()
    yield f"{path.stem}.ts", program(json.loads(text))
    for number, (key, misspelt) in enumerate(MISSPELT):
        if key in text:
            yield f"{path.stem}-misspelt-{number}.ts", program(json.loads(text.replace(key, misspelt)))


def program(board: dict[str, Any]) -> str:
    """Constants of Grafana's types: the dashboard, and the options and the field settings of each panel."""
    lines = ["import type { Dashboard } from '@grafana/schema';", PLAIN]
    for kind in sorted({panel["type"] for panel in panels(board)}):
        source = TYPES.format(folder=kind, module=PANELS[kind])
        lines.append(f"import type * as {kind} from '{source}';")
    lines.append(f"const board: Plain<Dashboard> = {json.dumps(board)};")
    for number, panel in enumerate(panels(board)):
        kind, custom = panel["type"], panel.get("fieldConfig", {}).get("defaults", {}).get("custom")
        lines.append(f"const options{number}: Plain<Partial<{kind}.Options>> = {json.dumps(panel.get('options', {}))};")
        if custom is not None:
            lines.append(f"const fields{number}: Plain<Partial<{kind}.FieldConfig>> = {json.dumps(custom)};")
    return "\n".join([*lines, "export {};"])


def panels(board: dict[str, Any]) -> list[dict[str, Any]]:
    """All panels, also those of collapsed rows, without the rows."""
    inner = [panel for row in board["panels"] for panel in (row, *row.get("panels", ()))]
    return [panel for panel in inner if panel["type"] != "row"]


def compiled(programs: dict[str, str]) -> dict[str, str]:
    """Errors by program."""
    for name, text in programs.items():
        (PLACE / name).write_text(text)
    ended = subprocess.run(["node", *TSC, *programs], cwd=PLACE, capture_output=True, text=True, check=False)
    errors: dict[str, str] = {}
    for line in ended.stdout.splitlines():
        name = line.partition("(")[0]
        if name not in programs:
            if not line.startswith(" "):
                raise SystemExit(f"the compiler failed: {line}{ended.stderr}")
            continue
        errors[name] = errors.get(name, "") + line[:300] + "\n"
    return errors


if __name__ == "__main__":
    sys.exit(main())
