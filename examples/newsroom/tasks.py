"""Tasks of the newsroom: tools of its agent, and the step that prints the article."""

from __future__ import annotations

from pathlib import Path

from runlane import App, Context

app = App()


@app.task("ask_harbour")
def ask_harbour(ctx: Context, place: str) -> dict[str, str]:
    """Return the report of the harbour office. Repeating the call is harmless, so the tool is repeatable."""
    known = "lighthouse" in place.lower()
    return {"place": place, "report": "lit last night, seen from 19 miles" if known else "nothing to report"}


@app.task("order_photo")
def order_photo(ctx: Context, motif: str, price_euro: int) -> dict[str, str]:
    """Order a photograph. The tool has the effect `once`: if its outcome is unknown, a person decides."""
    folder = Path("orders")
    folder.mkdir(exist_ok=True)
    order = folder / f"{len(list(folder.iterdir())) + 1}.txt"
    order.write_text(f"{ctx.idempotency_key}\n{motif}, at most {price_euro} euro\n")
    return {"order": order.stem, "motif": motif}


@app.task("publish")
def publish(ctx: Context, headline: str, story: str, caption: str) -> str:
    """Write the article into `published`.

    If a worker dies after the file is written and before the step is recorded, the step is executed again. The
    idempotency key is the same, so the second execution overwrites the same file.
    """
    folder = Path("published")
    folder.mkdir(exist_ok=True)
    name = ctx.idempotency_key.replace("/", "-")
    target = folder / f"{name}.md"
    target.write_text(f"# {headline}\n\n{story}\n\n*{caption}*\n")
    ctx.log("printed", path=str(target))
    return str(target)
