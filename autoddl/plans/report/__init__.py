"""What is shown of a plan, made once as sections of rows (`sections`) and rendered three times.

`contents` makes the sections of a plan, `terminal` renders them as text, `sections.Report.to_json`
as JSON, and `tools.report.page` as an HTML page.
"""

from .contents import report
from .terminal import explain

__all__ = ["explain", "report"]
