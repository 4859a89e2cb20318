# Reads the QR code that `sealane tunnel passwd --totp` draws on a terminal: versions 3 to 10, level M, without the correction of errors.
import sys
lines = [l for l in sys.stdin.buffer.read().decode().splitlines() if len(l) > 20 and set(l) <= set(' ▄▀█')]
rows = [[c in half for c in l] for l in lines for half in ('▀█', '▄█')]
n = len(lines[0]) - 8
dark = [[not rows[y + 4][x + 4] for x in range(n)] for y in range(n)]
v = (n - 17) // 4
at = {7: [6, 22, 38], 8: [6, 24, 42], 9: [6, 26, 46], 10: [6, 28, 50]}.get(v, [6, n - 7])
fixed = lambda x, y: (x < 9 and y < 9 or x < 9 and y >= n - 8 or x >= n - 8 and y < 9 or 6 in (x, y)
    or v > 6 and (x < 6 and n - 12 < y or y < 6 and n - 12 < x)
    or any(abs(x - a) < 3 and abs(y - b) < 3 for a in at for b in at if (a, b) not in ((6, 6), (6, n - 7), (n - 7, 6))))
places = [(8, 0), (8, 1), (8, 2), (8, 3), (8, 4), (8, 5), (8, 7), (8, 8), (7, 8), (5, 8), (4, 8), (3, 8), (2, 8), (1, 8), (0, 8)]
form = (sum(dark[y][x] << i for i, (x, y) in enumerate(places)) ^ 0x5412) >> 10
assert form >> 3 == 0, 'not level M'
mask = [lambda x, y: (x + y) % 2, lambda x, y: y % 2, lambda x, y: x % 3, lambda x, y: (x + y) % 3, lambda x, y: (x // 3 + y // 2) % 2,
    lambda x, y: x * y % 2 + x * y % 3, lambda x, y: (x * y % 2 + x * y % 3) % 2, lambda x, y: ((x + y) % 2 + x * y % 3) % 2][form & 7]
bits = []
for right in [r for r in range(n - 1, 6, -2)] + [5, 3, 1]:
    for step in range(n):
        y = step if (right + 1) & 2 else n - 1 - step
        bits += [dark[y][x] ^ (mask(x, y) == 0) for x in (right, right - 1) if not fixed(x, y)]
words = [sum(b << 7 - i for i, b in enumerate(bits[k:k + 8])) for k in range(0, len(bits) - 7, 8)]
sizes = {3: [44], 4: [32] * 2, 5: [43] * 2, 6: [27] * 4, 7: [31] * 4, 8: [38] * 2 + [39] * 2, 9: [36] * 3 + [37] * 2, 10: [43] * 4 + [44]}[v]
blocks, word = [[] for _ in sizes], iter(words)
for i in range(max(sizes)):
    for block, size in zip(blocks, sizes):
        if i < size:
            block.append(next(word))
stream = ''.join(format(w, '08b') for block in blocks for w in block)
def take(count):
    global stream
    head, stream = stream[:count], stream[count:]
    return int(head or '0', 2)
text, long = '', v > 9
while len(stream) >= 4:
    mode = take(4)
    if mode == 4:
        text += bytes(take(8) for _ in range(take(16 if long else 8))).decode()
    elif mode == 2:
        count = take(11 if long else 9)
        for k in range(0, count, 2):
            pair = count - k > 1
            value = take(11 if pair else 6)
            letters = '0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ $%*+-./:'
            text += (letters[value // 45] if pair else '') + letters[value % 45]
    elif mode == 1:
        count = take(12 if long else 10)
        for k in range(0, count, 3):
            digits = min(3, count - k)
            text += '%0*d' % (digits, take((4, 7, 10)[digits - 1]))
    else:
        break
print(text)
