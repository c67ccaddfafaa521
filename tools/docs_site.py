"""A hook of mkdocs: the site's search works from files, without a network.

Browsers start no worker from a file, so the theme asks a public server for a stand-in. Ours
takes its place.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ASKED = re.compile(r"https://[^\"]+/iframe-worker/shim")
PLACE = "assets/javascripts/worker.js"
# A worker in a hidden frame: the same messages, in the page's own thread.
WORKER = """class FrameWorker extends EventTarget {
  constructor(url) {
    super();
    this.frame = document.createElement("iframe");
    this.frame.hidden = true;
    document.body.appendChild(this.frame);
    const inner = this.frame.contentWindow;
    this.ready = new Promise((done) => { this.done = done; });
    inner.document.open();
    inner.document.write("<script>postMessage = (data) => parent.postMessage({worker: data}, '*')<\\/script>" +
      "<script src='" + url + "'><\\/script>");
    inner.document.close();
    inner.addEventListener("load", () => this.done());
    addEventListener("message", (event) => {
      if (event.source !== window && event.source !== inner || !event.data || !("worker" in event.data)) return;
      this.dispatchEvent(new MessageEvent("message", {data: event.data.worker}));
    });
  }
  postMessage(data) {
    this.ready.then(() => {
      const inner = this.frame.contentWindow;
      inner.dispatchEvent(new inner.MessageEvent("message", {data}));
    });
  }
  terminate() { this.frame.remove(); }
}
if (location.protocol === "file:") window.Worker = FrameWorker;
"""


def on_post_page(output: str, *, page: Any, config: Any) -> str:
    """Point a page to our stand-in."""
    up = "../" * page.url.count("/")
    return ASKED.sub(up + PLACE, output)


def on_post_build(*, config: Any) -> None:
    """Write the stand-in, and the page for what is not found without one."""
    site = Path(config["site_dir"])
    (site / PLACE).write_text(WORKER)
    missing = site / "404.html"
    missing.write_text(ASKED.sub(f"/{PLACE}", missing.read_text()))
