"""`python -m wiiiiided.ui.jobfile [docs]`: write anew what is made from the table of keys.

docs/job.schema.json as a whole, and the marked parts of docs/job-file.md. Run it at the root of the
repository after a change of `keys`; a test fails as long as it was not.
"""

from __future__ import annotations

import sys
from pathlib import Path

from wiiiiided.ui.jobfile import reference, schema

docs = Path(sys.argv[1] if len(sys.argv) > 1 else "docs")
page = docs / "job-file.md"
if not page.is_file():
    sys.exit(f"{page}: no such file; run this at the root of the repository")
page.write_text(reference.refreshed(page.read_text(encoding="utf-8")), encoding="utf-8")
(docs / "job.schema.json").write_text(schema.as_text(), encoding="utf-8")
