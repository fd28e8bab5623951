"""The newsroom's Python: what its agent can call, and the step that prints the article."""

from __future__ import annotations

from pathlib import Path

from runlane import App, Context

app = App()


@app.task("ask_harbour")
def ask_harbour(ctx: Context, place: str) -> dict[str, str]:
    """What the harbour office knows. Asking twice does no harm, so the tool is repeatable."""
    known = "lighthouse" in place.lower()
    return {"place": place, "report": "lit last night, seen from 19 miles" if known else "nothing to report"}


@app.task("order_photo")
def order_photo(ctx: Context, motif: str, price_euro: int) -> dict[str, str]:
    """Order a photograph. The tool says `once`: if nobody knows whether this happened, a person decides."""
    folder = Path("orders")
    folder.mkdir(exist_ok=True)
    order = folder / f"{len(list(folder.iterdir())) + 1}.txt"
    order.write_text(f"{ctx.idempotency_key}\n{motif}, at most {price_euro} euro\n")
    return {"order": order.stem, "motif": motif}


@app.task("publish")
def publish(ctx: Context, headline: str, story: str, caption: str) -> str:
    """Write the article into `published`.

    A worker may die after the file is written and before that is recorded; then the step is made again. The key is the
    same for both, so the second writes what the first one wrote.
    """
    folder = Path("published")
    folder.mkdir(exist_ok=True)
    name = ctx.idempotency_key.replace("/", "-")
    target = folder / f"{name}.md"
    target.write_text(f"# {headline}\n\n{story}\n\n*{caption}*\n")
    ctx.log("printed", path=str(target))
    return str(target)
