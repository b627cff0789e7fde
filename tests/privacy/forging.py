"""A forger, who changes lines of a ledger and makes chain and head right again."""

import hashlib
import json

from manifed.privacy.ledger import Head, Ledger
from manifed.privacy.odometer import Odometer


def head_file(path):
    """Where the head of a ledger lies."""
    return path.with_name(f"{path.name}.head")


def rewritten(path, change, *, keep_tags=False):
    """The ledger with each line, as JSON, as ``change`` gives it; None drops it. Returns its head.

    Tags, also the head's, stay as they were or go: a forger has no key.
    """
    previous = sha256 = "0" * 64
    lines = []
    for line in path.read_bytes().splitlines():
        found = json.loads(line)
        tag = found.pop("tag", None) if keep_tags else found.pop("tag", None) and None
        del found["sha256"]
        if (changed := change(found)) is None:
            continue
        previous = sha256
        changed |= {"sequence": len(lines), "previous": previous}
        content = json.dumps(changed, sort_keys=True, separators=(",", ":")).encode()
        sha256 = hashlib.sha256(content).hexdigest()
        end = f',"sha256":"{sha256}"' + (f',"tag":"{tag}"' if tag else "") + "}\n"
        lines.append(content[:-1] + end.encode())
    path.write_bytes(b"".join(lines))
    head = Head(len(lines) - 1, sha256)
    kept = Head.read(path).places[-1].tag
    head.write(path, previous)
    if keep_tags and kept:
        said = {"format": 3, "sequence": head.sequence, "sha256": sha256, "tag": kept}
        head_file(path).write_text(json.dumps(said))
    return head


def audited(path):
    """The odometer that a ledger's lines give."""
    odometer = Odometer()
    Ledger.verify(path, feed=odometer.feed)
    return odometer


def entries_of(path, key=None):
    """All entries of a ledger that is whole, verified."""
    entries = []
    assert not Ledger.verify(path, key=key, feed=entries.append).is_torn
    return tuple(entries)


OLDER = (
    b'{"body":{"format":2,"key_id":null,"run_id":"0"},"kind":"header",'
    b'"previous":"%s","sequence":0}' % (b"0" * 64)
)


def write_older(path, content=OLDER):
    """A ledger of another format, whole. Returns what its two files hold, by name."""
    sha256 = hashlib.sha256(content).hexdigest()
    path.write_bytes(content[:-1] + f',"sha256":"{sha256}"}}\n'.encode())
    head_file(path).write_text(f'{{"sequence": 4, "sha256": "{sha256}"}}\n')
    return {one.name: one.read_bytes() for one in (path, head_file(path))}
