import csv
def read_preamble_csv(path):
    meta, rest = {}, []
    with open(path, newline="") as f:
        for line in f:
            if line.startswith("#"):
                for word in line[1:].split():
                    key, eq, value = word.partition("=")
                    if eq: meta[key] = value
            else:
                rest.append(line)
    return meta, list(csv.DictReader(rest))
