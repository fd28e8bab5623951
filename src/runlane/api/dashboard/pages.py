"""The page of the dashboard with its security headers, and the page for a package without the dashboard.

Content of tenants and models is treated as hostile. The policy lets the page run scripts of this server only and
connect to this server only. Styles that libraries insert need the nonce of the response. Trusted Types reject every
string that would become markup or code; the only policy of the page, `default`, allows the URLs of its own worker
scripts.
"""

from __future__ import annotations

import re
import secrets
from html import escape
from typing import Final

# A random value replaces this mark in the page; the policy in the same response allows styles with that value.
NONCE_MARK: Final = "__CSP_NONCE__"
_HEAD: Final = re.compile(r"<head[^>]*>", re.IGNORECASE)
_BASE: Final = re.compile(r"<base\b[^>]*>\s*", re.IGNORECASE)
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; worker-src 'self'; style-src 'self' 'nonce-{nonce}'; img-src 'self' data:; "
    "font-src 'self'; connect-src 'self'; manifest-src 'self'; form-action 'self'; base-uri 'self'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types default"
)
_DENIED_FEATURES: Final = (
    "accelerometer", "camera", "display-capture", "geolocation", "gyroscope", "magnetometer", "microphone", "midi",
    "payment", "publickey-credentials-get", "screen-wake-lock", "serial", "usb", "xr-spatial-tracking",
)  # fmt: skip
_MISSING: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Runlane: the dashboard is not built</title>
</head>
<body>
<h1>The dashboard is not built</h1>
<p>This copy of Runlane has no files of the dashboard. The API works: see <a href="{prefix}/docs">its reference</a>.</p>
<p>In a checkout, build the dashboard and restart the server:</p>
<pre>make ui</pre>
<p>Packages on the index contain the dashboard. To serve the API alone, set <code>RUNLANE_UI=false</code>.</p>
</body>
</html>
"""


def new_nonce() -> str:
    """Return the nonce for one response."""
    return secrets.token_urlsafe(18)


def security_headers(nonce: str) -> dict[str, str]:
    """Return the headers of every response under /ui/."""
    return {
        "Content-Security-Policy": _POLICY.format(nonce=nonce),
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Permissions-Policy": ", ".join(f"{feature}=()" for feature in _DENIED_FEATURES),
    }


def page(template: str, prefix: str, nonce: str) -> str:
    """Return the page for a server whose URLs begin with this prefix."""
    base = f'<base href="{escape(prefix, quote=True)}/ui/">'
    without = _BASE.sub("", template)
    return _HEAD.sub(lambda head: head.group(0) + base, without, count=1).replace(NONCE_MARK, nonce)


def missing_page(prefix: str) -> str:
    """Return the page that describes how to build the dashboard."""
    return _MISSING.format(prefix=escape(prefix, quote=True))
