def report(points, best, *, replicates, figure):
    return ""
