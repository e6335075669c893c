"""Sokoban in plain Python on lists of characters, written apart from the code under test."""

from collections import deque

DIRECTIONS = {"Up": (-1, 0), "Down": (1, 0), "Left": (0, -1), "Right": (0, 1)}


def parse(text):
    """Returns walls, targets and boxes as sets of (row, column), and the player's place."""
    walls, targets, boxes, player = set(), set(), set(), None
    for row, line in enumerate(text.split("\n")):
        for column, symbol in enumerate(line):
            place = (row, column)
            if symbol == "#":
                walls.add(place)
            if symbol in "O√S":
                targets.add(place)
            if symbol in "X√":
                boxes.add(place)
            if symbol in "PS":
                player = place
    return frozenset(walls), frozenset(targets), frozenset(boxes), player


def show(text, boxes, player):
    """Draws the walls and targets of `text` with boxes and player elsewhere."""
    walls, targets, _, _ = parse(text)

    def symbol(place):
        if place in walls:
            return "#"
        if place in boxes:
            return "√" if place in targets else "X"
        if place == player:
            return "S" if place in targets else "P"
        return "O" if place in targets else "_"

    return "\n".join(
        "".join(symbol((row, column)) for column in range(len(line)))
        for row, line in enumerate(text.split("\n"))
    )


def move(walls, boxes, player, name):
    """Returns boxes and player after one action."""
    down, right = DIRECTIONS[name]
    ahead = (player[0] + down, player[1] + right)
    beyond = (ahead[0] + down, ahead[1] + right)
    if ahead in walls:
        return boxes, player
    if ahead in boxes:
        if beyond in walls or beyond in boxes:
            return boxes, player
        boxes = (boxes - {ahead}) | {beyond}
    return boxes, ahead


def step(text, name):
    """Returns the next board, the reward, whether the player moved, and whether it is solved."""
    walls, targets, boxes, player = parse(text)
    new_boxes, new_player = move(walls, boxes, player, name)
    solved = new_boxes == targets
    reward = -0.1 + len(new_boxes & targets) - len(boxes & targets) + (10 if solved else 0)
    return show(text, new_boxes, new_player), reward, new_player != player, solved


def shortest(text):
    """Returns the length of a shortest solution by breadth-first search, or None."""
    walls, targets, boxes, player = parse(text)
    depth = {(boxes, player): 0}
    queue = deque(depth)
    while queue:
        state = queue.popleft()
        if state[0] == targets:
            return depth[state]
        for name in DIRECTIONS:
            following = move(walls, *state, name)
            if following not in depth:
                depth[following] = depth[state] + 1
                queue.append(following)
    return None


def turn(text):
    """Turns a board by a quarter, clockwise."""
    lines = text.split("\n")
    return "\n".join(
        "".join(lines[len(lines) - 1 - row][column] for row in range(len(lines)))
        for column in range(len(lines[0]))
    )


def orbit(text):
    """Returns the set of the board's rotations and reflections."""
    found = set()
    for board in (text, "\n".join(line[::-1] for line in text.split("\n"))):
        for _ in range(4):
            found.add(board)
            board = turn(board)
    return found


def codes(text):
    """Returns the codes of a board as nested lists."""
    return [["#_O√XPS".index(symbol) for symbol in line] for line in text.split("\n")]
