"""What stands on the pages of a PDF file that a browser has printed, as JSON, in points: for each page its size, its text without
spaces, its drawings (canvases and pictures: left, bottom, right, top), and the texts that begin where they cannot be seen, outside the
page or what they are clipped to. It follows the format's description as far as browsers' files need it: no encryption, no streams of
objects."""

import json
import re
import sys
import zlib


def objects(data):
    """Each object by its number: its dictionary as text, its stream unpacked."""
    found = {}
    for match in re.finditer(rb"(?:^|[\r\n])(\d+) 0 obj\b(.*?)(?:stream\r?\n|endobj)", data, re.S):
        head, stream = match[2].decode("latin-1"), b""
        if match[0].endswith((b"stream\n", b"stream\r\n")):
            length = re.search(r"/Length (\d+)( 0 R)?", head)
            size = int(length[1])
            if length[2]:
                size = int(re.search(rb"(?:^|[\r\n])%d 0 obj\s*(\d+)" % size, data)[1])
            stream = data[match.end() : match.end() + size]
            if "/FlateDecode" in head and "/Subtype /Image" not in head:
                stream = zlib.decompress(stream)
        found[int(match[1])] = (head, stream)
    return found


def named(all_objects, head, kind):
    """The references of a kind in a dictionary's resources: name to number."""
    inner = re.search(r"/Resources\s+(\d+) 0 R", head)
    text = all_objects[int(inner[1])][0] if inner else head
    outer = re.search(r"/%s\s+(\d+) 0 R" % kind, text)
    if outer:
        text = all_objects[int(outer[1])][0]
    else:
        block = re.search(r"/%s\s*<<(.*?)>>" % kind, text, re.S)
        text = block[1] if block else ""
    return {name: int(number) for name, number in re.findall(r"/(\S+)\s+(\d+) 0 R", text)}


def letters(all_objects, font):
    """What the glyphs of a font mean, and how many digits a glyph has."""
    head = all_objects[font][0]
    reference = re.search(r"/ToUnicode (\d+) 0 R", head)
    means = {}
    if not reference:
        return means, 2
    text = all_objects[int(reference[1])][1].decode("latin-1")
    word = lambda digits: bytes.fromhex(digits).decode("utf-16-be", "replace")
    for block in re.findall(r"beginbfchar(.*?)endbfchar", text, re.S):
        for glyph, meaning in re.findall(r"<(\w+)>\s*<(\w+)>", block):
            means[int(glyph, 16)] = word(meaning)
    for block in re.findall(r"beginbfrange(.*?)endbfrange", text, re.S):
        for first, last, meaning in re.findall(r"<(\w+)>\s*<(\w+)>\s*<(\w+)>", block):
            for at, glyph in enumerate(range(int(first, 16), int(last, 16) + 1)):
                means[glyph] = chr(int(meaning, 16) + at) if len(meaning) == 4 else word(meaning)
    return means, 4 if "/Type0" in head else 2


def times(a, b):
    """The matrix that does `a` and then `b`."""
    return (
        a[0] * b[0] + a[1] * b[2], a[0] * b[1] + a[1] * b[3],
        a[2] * b[0] + a[3] * b[2], a[2] * b[1] + a[3] * b[3],
        a[4] * b[0] + a[5] * b[2] + b[4], a[4] * b[1] + a[5] * b[3] + b[5],
    )  # fmt: skip


def corners(matrix, width, height):
    xs = [x * matrix[0] + y * matrix[2] + matrix[4] for x in (0, width) for y in (0, height)]
    ys = [x * matrix[1] + y * matrix[3] + matrix[5] for x in (0, width) for y in (0, height)]
    return [min(xs), min(ys), max(xs), max(ys)]


TOKEN = re.compile(rb"\[|\]|<([0-9A-Fa-f\s]*)>|\((?:\\.|[^\\)])*\)|/[^\s/\[\]<>()]+|[-+.\d]+|[A-Za-z'\"*]+")


def walk(all_objects, head, stream, matrix, clip, page):
    """Does what a stream says; what it draws goes into the page."""
    fonts, things = named(all_objects, head, "Font"), named(all_objects, head, "XObject")
    kept, stack, line, font, box, fresh = [], [], (1, 0, 0, 1, 0, 0), ({}, 4), None, False
    for match in TOKEN.finditer(stream):
        token = match[0]
        if token[:1] in b"/<([]-+.0123456789":
            stack.append(token)
            continue
        numbers = lambda count: tuple(float(n) for n in stack[-count:])
        if token == b"q":
            kept.append((matrix, clip))
        elif token == b"Q":
            matrix, clip = kept.pop()
        elif token == b"cm":
            change = numbers(6)
            matrix = times(change, matrix)
            # What is clipped and then drawn by another scale is a canvas.
            if fresh and abs(change[0]) != 1 and clip not in page["drawings"]:
                page["drawings"].append(clip)
            fresh = False
        elif token == b"re":
            x, y, width, height = numbers(4)
            box = corners(times((1, 0, 0, 1, x, y), matrix), width, height)
        elif token in (b"W", b"W*"):
            if box:
                clip = [max(clip[0], box[0]), max(clip[1], box[1]), min(clip[2], box[2]), min(clip[3], box[3])]
                fresh = True
        elif token in (b"m", b"c"):
            box = None
        elif token == b"BT":
            line = (1, 0, 0, 1, 0, 0)
        elif token == b"Tm":
            line = numbers(6)
        elif token in (b"Td", b"TD"):
            line = times((1, 0, 0, 1) + numbers(2), line)
        elif token == b"Tf":
            font = letters(all_objects, fonts[stack[-2][1:].decode()])
        elif token in (b"Tj", b"TJ"):
            digits = b"".join(part[1:-1] for part in stack if part[:1] == b"<").decode()
            digits = "".join(digits.split())
            means, size = font
            glyphs = (int(digits[at : at + size], 16) for at in range(0, len(digits), size))
            text = "".join(means.get(glyph, "") for glyph in glyphs).replace(" ", "")
            page["text"] += text
            x, y = times(line, matrix)[4:]
            if not (clip[0] - 1 <= x <= clip[2] + 1 and clip[1] - 1 <= y <= clip[3] + 1):
                page["unseen"].append(text)
        elif token == b"Do":
            number = things[stack[-1][1:].decode()]
            inner, content = all_objects[number]
            if "/Subtype /Image" in inner:
                page["drawings"].append(corners(matrix, 1, 1))
            elif "/Subtype /Form" in inner:
                own = re.search(r"/Matrix \[([^\]]*)\]", inner)
                own = tuple(float(n) for n in own[1].split()) if own else (1, 0, 0, 1, 0, 0)
                walk(all_objects, inner, content, times(own, matrix), clip, page)
        stack.clear()


def main():
    data = open(sys.argv[1], "rb").read()
    if not data.startswith(b"%PDF-") or b"%%EOF" not in data[-1024:]:
        sys.exit("it is no PDF, or is cut off")
    all_objects = objects(data)
    pages = []
    for _, (head, _) in sorted(all_objects.items()):
        if not re.search(r"/Type\s*/Page\b", head):
            continue
        box = [float(n) for n in re.search(r"/MediaBox\s*\[([^\]]*)\]", head)[1].split()]
        page = {"width": box[2] - box[0], "height": box[3] - box[1], "text": "", "drawings": [], "unseen": []}
        contents = re.search(r"/Contents\s*(\[[^\]]*\]|\d+ 0 R)", head)[1]
        for number in re.findall(r"(\d+) 0 R", contents):
            walk(all_objects, head, all_objects[int(number)][1], (1, 0, 0, 1, 0, 0), box, page)
        pages.append(page)
    print(json.dumps(pages))


main()
