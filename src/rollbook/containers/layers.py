"""The files of a container that was killed, as the overlay file system of this machine keeps them.

The image is the lower layers; what code inside changed is the upper layer: files, links, folders, and a device with the
number 0 for what was removed. To move something out of the upper layer is to have the image's own in its place again,
so no file is ever copied. No link is followed outside these layers: code inside may point one at this machine.
"""

from __future__ import annotations

import errno
import itertools
import os
import posixpath
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

MARKS = ("trusted.overlay.opaque", "trusted.overlay.redirect")
"""The marks of a folder that hides, or takes from elsewhere, what the layers below have in its place."""

ACCESS_LISTS = ("system.posix_acl_access", "system.posix_acl_default")
"""Permissions of a folder besides its mode: for single users, and for what is made in it."""

ATTRIBUTE_END = "="
"""What ends the name of an extended attribute in a tar archive: one that has it in its name cannot be archived."""

KERNEL_FOLDERS = ("/proc", "/sys", "/dev")
"""Folders of the kernel, whose links lead anywhere."""

MAX_LINKS = 40
MAX_FOLLOWED, MAX_STEPS = 200_000, 2_000_000
"""How many links of a container are followed, and how many places on their way are looked at: about 30 s."""

MAX_PLACE_BYTES = 2048
MAX_NOTED = 10_000


class Found(NamedTuple):
    """A path that is there, and the layer that has it."""

    layer: str
    status: os.stat_result


class Layers:
    """The layers of one container. Paths are those inside; names that are not UTF-8 keep their bytes in surrogates."""

    def __init__(self, data: Mapping[str, str], kept: Sequence[str] = ()) -> None:
        """Take what the runtime says of the layers; changes below the paths `kept` are not undone."""
        self._kept = kept
        self.upper = data["UpperDir"]
        self.lowers = [each for each in data.get("LowerDir", "").split(":") if each]
        self.undone: list[str] = []
        """The paths that were made those of the image again; the first MAX_NOTED of them."""
        self.undone_count = 0
        self._aside = tempfile.mkdtemp(prefix="rollbook-undone-", dir=posixpath.dirname(self.upper))
        self._moved = 0

    def walk_changes(self, is_undone: Callable[[str, os.stat_result], bool]) -> list[str]:
        """Undo every change of the upper layer that is chosen; nothing inside a folder that was undone as a whole.

        Return the links that stay. Those that are more than MAX_FOLLOWED are undone, and so is everything in folders
        with a path of more than MAX_PLACE_BYTES: inside it may be valid, and be too long for this machine.
        """
        folders, links = [""], list[str]()
        while folders:
            folder = folders.pop()
            if len(os.fsencode(folder)) > MAX_PLACE_BYTES:
                self._undo_whole(folder)
                continue
            for name, status in _list_folder(self.upper + folder):
                path = f"{folder}/{name}"
                if is_undone(path, status):
                    self.put_back(path, permissions=False)
                elif stat.S_ISLNK(status.st_mode):
                    if len(links) < MAX_FOLLOWED:
                        links.append(path)
                    else:
                        self.undo(path)
                if stat.S_ISDIR(status.st_mode):
                    folders.append(path)  # one that was moved away is empty now
        return links

    def find_links_into(self, links: Iterable[str], folders: Sequence[str]) -> list[str]:
        """Return which links lead into folders or to one around them, also where another link on the way does.

        The links that are left after MAX_STEPS places count as such: code inside may have made any number of them.
        So do links over a place with a long path: inside one may be valid that is too long for this machine.
        """
        steps, found = 0, list[str]()
        for link in links:
            place = "/"
            for place, _ in _follow(link, [self.upper, *self.lowers]):
                steps += 1
                if steps > MAX_STEPS or len(os.fsencode(place)) > MAX_PLACE_BYTES or is_in(place, folders):
                    found.append(link)
                    break
            else:
                found += [link] if any(is_in(each, [place]) for each in folders) else []
        return found

    def find_in_image(self, path: str) -> Found | None:
        """Return what the image has at a path without links."""
        return _find(path, self.lowers)

    def resolve(self, path: str) -> str:
        """Return where a path leads inside. A link to a folder of the kernel that the image lacks is undone first."""
        while True:
            *links, place = _trace(path, [self.upper, *self.lowers])
            count = self.undone_count
            for link in links if is_in(place, KERNEL_FOLDERS) else ():
                self.undo(link)
            if self.undone_count == count:
                return place

    def resolve_in_image(self, path: str) -> str:
        """Return where a path leads in the image."""
        return self.trace_in_image(path)[-1]

    def trace_in_image(self, path: str) -> list[str]:
        """Return every link on the way of a path in the image, and where the last one leads."""
        return _trace(path, self.lowers)

    def has_program(self, path: str) -> bool:
        """Return whether a path without links among its folders is a program, or a link that may lead to one."""
        found = _find(path, [self.upper, *self.lowers])
        mode = found.status.st_mode if found else 0
        return stat.S_ISLNK(mode) or (stat.S_ISREG(mode) and bool(mode & 0o111))

    def list_in_image(self, folders: Iterable[str]) -> set[str]:
        """Return the names that folders of the image have; links to folders are followed."""
        places = {_trace(each, self.lowers)[-1] for each in folders}
        visible = [(layer, place) for place in places for layer in _find_visible(place, self.lowers)]
        return {name for layer, place in visible for name, _ in _list_folder(layer + place)}

    def put_back(self, path: str, *, permissions: bool = True) -> None:
        """Make a path that of the image, with the folders and links on the way to what the image has there.

        `permissions`: folders on the way to something that the image has get the image's permissions back.
        """
        for step in _trace(path, self.lowers):
            resets = permissions and self.find_in_image(step) is not None
            for each in (*_list_parents(step), step):
                before = self.find_in_image(each)
                if not before:
                    continue
                if not (_is_folder(before) and _is_folder(_find(each, [self.upper]))):
                    self.undo(each)
                elif resets and each != step:
                    self._reset_permissions(each, before.status)
        folder, name = posixpath.split(path)
        self.undo(posixpath.join(self.resolve(folder), name))

    def undo(self, path: str) -> None:
        """Make one path that of the image; of a folder that the image has too only itself, not what is in it."""
        if is_in(path, self._kept):
            return
        folder, name = posixpath.split(path)
        with suppress(FileNotFoundError, NotADirectoryError), _open_folder(self.upper, folder) as descriptor:
            status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            before = self.find_in_image(path)
            if before and _is_folder(before) and stat.S_ISDIR(status.st_mode):
                changed = self._show_image(path, before.status)
            else:
                changed = True
                self._move_aside(name, descriptor)
            if changed:
                self._note_undone(path)

    def _undo_whole(self, path: str) -> None:
        """Make a folder, with all that is in it, that of the image."""
        if not is_in(path, self._kept):
            self.move_aside(path)
            self._note_undone(path)

    def _note_undone(self, path: str) -> None:
        self.undone_count += 1
        self.undone += [path] if self.undone_count <= MAX_NOTED else []

    def move_aside(self, path: str) -> None:
        """Remove everything that the container has at a path besides the image, however large or deep it is."""
        folder, name = posixpath.split(path)
        with suppress(FileNotFoundError, NotADirectoryError), _open_folder(self.upper, folder) as descriptor:
            self._move_aside(name, descriptor)

    def remove_odd_attributes(self, path: str) -> bool:
        """Remove extended attributes that no archive can hold, at a path and below; return whether there were any."""
        top = _trace(path, [self.upper, *self.lowers])[-1].rstrip("/")
        status, removed = _read_status(self.upper + top), False
        left = [(top, status)] if status else []
        while left:
            place, status = left.pop()
            for name in os.listxattr(self.upper + place, follow_symlinks=False):
                if ATTRIBUTE_END in name:
                    os.removexattr(self.upper + place, name, follow_symlinks=False)
                    removed = True
            if stat.S_ISDIR(status.st_mode) and len(os.fsencode(place)) <= MAX_PLACE_BYTES:
                left += [(f"{place}/{name}", each) for name, each in _list_folder(self.upper + place)]
        return removed

    def is_folder(self, path: str) -> bool:
        """Return whether a path without links is a folder in the container."""
        return _is_folder(_find(path, [self.upper, *self.lowers]))

    def find_lost_folders(self, folder: str) -> list[str]:
        """Return the folders on the way to one, and itself, from the first on that is no folder any more.

        A link that the container has there counts as lost, for runtimes do not follow it inside. They are named without
        links on their way.
        """
        way = [*_list_parents(folder), folder]
        outer = ["/", *itertools.takewhile(self._leads_to_folder, way)][-1]
        place = _trace(outer, [self.upper, *self.lowers])[-1]
        lost = way[way.index(outer) + 1 if outer in way else 0 :]
        return [posixpath.join(place, posixpath.relpath(each, outer)) for each in lost]

    def _leads_to_folder(self, path: str) -> bool:
        *links, place = _trace(path, [self.upper, *self.lowers])
        return self.is_folder(place) and not any(_find(link, [self.upper]) for link in links)

    def _move_aside(self, name: str, folder: int) -> None:
        # Beside the layer, from where the runtime removes it with the container: that is one step for a folder.
        os.rename(name, f"{self._aside}/{self._moved}", src_dir_fd=folder)
        self._moved += 1

    def _show_image(self, path: str, before: os.stat_result) -> bool:
        """Let a folder show what the image has in it, with the image's permissions; return whether it hid that."""
        self._reset_permissions(path, before)
        marks = [mark for mark in MARKS if mark in os.listxattr(self.upper + path, follow_symlinks=False)]
        for mark in marks:
            os.removexattr(self.upper + path, mark, follow_symlinks=False)
        return bool(marks)

    def _reset_permissions(self, path: str, before: os.stat_result) -> None:
        self.remove_access_lists(path)
        os.chmod(self.upper + path, stat.S_IMODE(before.st_mode))

    def remove_access_lists(self, path: str) -> None:
        """Leave a folder of the container with the permissions of its mode alone."""
        with suppress(FileNotFoundError, NotADirectoryError), _open_folder(self.upper, path) as descriptor:
            for name in ACCESS_LISTS:
                if name in os.listxattr(descriptor):
                    os.removexattr(descriptor, name)

    def read(self, path: str, max_bytes: int, *, image: bool = False) -> bytes:
        """Return a file of the container or of its image; ValueError if there is no regular file or it is larger."""
        found = _find(path, self.lowers if image else [self.upper, *self.lowers])
        if not found or not stat.S_ISREG(found.status.st_mode) or found.status.st_size > max_bytes:
            raise ValueError(f"{path} is no regular file of at most {max_bytes} bytes")
        with open(found.layer + path, "rb") as file:
            return file.read(max_bytes)


def is_in(path: str, folders: Sequence[str]) -> bool:
    """Whether a path is one of the folders or inside one.

    >>> is_in("/dev/shm", ["/dev"]), is_in("/developer", ["/dev"])
    (True, False)
    """
    return any(path == each or path.startswith(f"{each.rstrip('/')}/") for each in folders)


def _trace(path: str, layers: Sequence[str]) -> list[str]:
    """Return every link on the way of a path, each by its own path without links, and where the last one leads."""
    links, place = [], "/"
    for place, is_link in _follow(path, layers):
        links += [place] if is_link else []
    return [*links, place]


def _follow(path: str, layers: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """Yield each place on the way of a path, by its own path without links, and whether it is a link that is followed.

    The layers that are visible in a place are kept for what is in it: deep folders take no longer than shallow ones.
    """
    way = [("/", list(_find_folders("/", layers)))]
    left, links = path, 0
    while left:
        part, _, left = left.lstrip("/").partition("/")
        folder, visible = way[-1]
        if part in ("", "."):
            continue
        if part == "..":
            way = way[:-1] or way
            yield way[-1][0], False
            continue
        place = posixpath.join(folder, part)
        found = _find_visible_entry(place, visible)
        is_link = found is not None and stat.S_ISLNK(found.status.st_mode) and links < MAX_LINKS
        yield place, is_link
        if found and is_link:
            links += 1
            target = os.readlink(found.layer + place)
            way = way[:1] if target.startswith("/") else way
            left = f"{target}/{left}"
        else:
            way.append((place, list(_find_folders(place, visible))))
    yield way[-1][0], False  # a link may lead to a folder around it


def _find(path: str, layers: Sequence[str]) -> Found | None:
    """Return what layers have at a path whose folders are no links."""
    return _find_visible_entry(path, _find_visible(posixpath.dirname(path), layers))


def _find_visible_entry(path: str, layers: Sequence[str]) -> Found | None:
    """Return what layers have at a path whose folder is visible in all of them."""
    for layer in layers:
        if status := _read_status(layer + path):
            return None if _is_whiteout(status) else Found(layer, status)
    return None


def _read_status(path: str) -> os.stat_result | None:
    """Return what is at a path of a layer; None if there is nothing, also because no file can have that name.

    Other errors are raised: what cannot be looked at is not the same as what is not there.
    """
    try:
        return os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:  # the links that lead there are undone, see `find_links_into`
            return None
        raise


def _find_visible(folder: str, layers: Sequence[str]) -> Sequence[str]:
    """Return the layers that are visible in a folder."""
    for each in (*_list_parents(folder), folder):
        layers = list(_find_folders(each, layers))
    return layers


def _list_parents(path: str) -> list[str]:
    """Return the folders that a path is in, outer ones first, without the root.

    >>> _list_parents("/usr/local/bin")
    ['/usr', '/usr/local']
    """
    parts = path.strip("/").split("/")
    return ["/" + "/".join(parts[:count]) for count in range(1, len(parts))]


def _find_folders(path: str, layers: Sequence[str]) -> Iterator[str]:
    """Yield the layers whose folder at a path is visible."""
    for layer in layers:
        if not (status := _read_status(layer + path)):
            continue
        if not stat.S_ISDIR(status.st_mode):
            return
        yield layer
        if _is_opaque(layer + path):
            return


@contextmanager
def _open_folder(root: str, path: str) -> Iterator[int]:
    """Open a folder of a layer; NotADirectoryError if there is a link on the way."""
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in filter(None, path.split("/")):
            inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)


def _list_folder(path: str) -> list[tuple[str, os.stat_result]]:
    """Return what a folder has; nothing of one that was moved away. OSError if it cannot be listed."""
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(path) as entries:
        return [(entry.name, entry.stat(follow_symlinks=False)) for entry in entries]
    return []


def _is_whiteout(status: os.stat_result) -> bool:
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


def _is_folder(found: Found | None) -> bool:
    return found is not None and stat.S_ISDIR(found.status.st_mode)


def _is_opaque(path: str) -> bool:
    return any(mark in MARKS for mark in os.listxattr(path, follow_symlinks=False))


def remove_conflict(upper: str, path: str, *, is_folder: bool) -> None:
    """Remove what is at a path of the layer if it is no folder and should be one, or the other way round.

    A folder in place of something else is empty: what the image has there was removed. A path that leads through a
    link is left alone, for it could lead out of the layer.
    """
    *parents, name = path.strip("/").split("/")
    folder = upper
    for parent in parents:
        folder = f"{folder}/{parent}"
        if not _is_folder_at(folder):
            return
    place = f"{folder}/{name}"
    if not os.path.lexists(place) or _is_folder_at(place) == is_folder or _is_whiteout(os.lstat(place)):
        return
    if not is_folder:
        shutil.rmtree(place)
        return
    os.unlink(place)
    os.mkdir(place, 0o755)
    os.setxattr(place, MARKS[0], b"y")
    os.chown(place, os.stat(folder).st_uid, os.stat(folder).st_gid)


def _is_folder_at(path: str) -> bool:
    with suppress(OSError):
        return stat.S_ISDIR(os.lstat(path).st_mode)
    return False


def read_unlinked(root: str, path: str, max_bytes: int) -> bytes:
    """Return a regular file below a folder without following any link; FileNotFoundError if there is none."""
    folder, name = posixpath.split(path)
    try:
        with _open_folder(root, folder) as parent:
            # A pipe would not let us open it before somebody writes to it.
            descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=parent)
    except OSError as error:
        raise FileNotFoundError(f"{path} cannot be read: {error.strerror}") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileNotFoundError(f"{path} is no regular file")
    with open(descriptor, "rb") as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise ValueError(f"{path} is larger than {max_bytes} bytes")
    return content
