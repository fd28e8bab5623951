"""The newsroom's Python: the one step of its orchestration that acts on the world."""

from __future__ import annotations

from pathlib import Path

from runlane import App, Context

app = App()


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
