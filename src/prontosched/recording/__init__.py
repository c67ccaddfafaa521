"""Write what a source sees into a trace that survives a kill.

`record` reads on time and hands rows to a `Recorder`, which closes a part file regularly. On a clean exit
the parts are joined to one file. After a kill they are all there but the open one, readers accept their
folder, and `join_parts` makes the one file later.
"""

from prontosched.recording.loop import Progress, record
from prontosched.recording.parts import Recorder, join_parts, parts_folder

__all__ = ["Progress", "Recorder", "join_parts", "parts_folder", "record"]
