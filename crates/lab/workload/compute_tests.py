"""The compute class, ten tests, and the memory class, two: each reads its input once and then calculates."""
import hashlib

from common import COLUMNS, main, matrix

COLUMNS_WIDE = 297  # of the regressions; the last is what is explained
COLUMNS_RANK = 200
COLUMNS_MODEL = 12  # of the models; the last is what is explained


def rounded(numbers):
    """Numbers of a result, as many digits as single-threaded libraries of one version agree on."""
    return [float(f"{float(number):.9g}") for number in numbers]


def stepwise(np, x, y, steps):
    """Forward selection: each step takes the column that explains most of what is left."""
    chosen, left = [], y - y.mean()
    for _ in range(steps):
        explains = np.abs(x.T @ left)
        explains[chosen] = -1.0
        chosen.append(int(explains.argmax()))
        fit, *_ = np.linalg.lstsq(x[:, chosen], y, rcond=None)
        left = y - x[:, chosen] @ fit
    return chosen, fit


def comp_test1(place, np):
    """numpy: stepwise regression, 296 columns, 10 steps."""
    data, bits = matrix(np, place.input("comp"), COLUMNS_WIDE)
    chosen, fit = stepwise(np, data[:, :-1], data[:, -1], 10)
    return {"input": bits, "chosen": chosen, "fit": rounded(fit)}


def comp_test2(place, np, cluster, decomposition):
    """scikit-learn: principal components of the 296 columns, then clusters of the scores."""
    data, bits = matrix(np, place.input("comp"), COLUMNS_WIDE)
    parts = decomposition.PCA(n_components=8, svd_solver="covariance_eigh").fit(data[:, :-1])
    # The sign of a component is free.
    scores = np.abs(parts.transform(data[:, :-1]))
    groups = cluster.KMeans(n_clusters=6, n_init=2, random_state=1, max_iter=50).fit(scores)
    return {"input": bits, "variance": rounded(parts.explained_variance_), "inertia": rounded([groups.inertia_])}


def comp_test5(place, np, ensemble):
    """scikit-learn: a forest of 20 trees."""
    data, bits = matrix(np, place.input("models"), COLUMNS_MODEL)
    forest = ensemble.RandomForestRegressor(n_estimators=20, max_depth=8, random_state=1, n_jobs=1)
    forest.fit(data[:, :-1], data[:, -1])
    return {"input": bits, "weights": rounded(forest.feature_importances_)}


def genmod(place, np, api):
    """statsmodels: a generalised linear model of counts."""
    data, bits = matrix(np, place.input("models"), COLUMNS_MODEL)
    counts = np.floor(np.abs(data[:, -1]) * 2)
    fit = api.GLM(counts, api.add_constant(data[:, :-1]), family=api.families.Poisson()).fit()
    return {"input": bits, "fit": rounded(fit.params), "deviance": rounded([fit.deviance])}


def glimmix(place, np, api):
    """statsmodels: a binary outcome in groups that are alike inside (estimating equations)."""
    data, bits = matrix(np, place.input("visits"), COLUMNS_MODEL)
    yes, groups = (data[:, -1] > 0).astype(float), np.arange(len(data)) // 20
    model = api.GEE(yes, api.add_constant(data[:, :4]), groups=groups, family=api.families.Binomial(),
                    cov_struct=api.cov_struct.Exchangeable())
    return {"input": bits, "fit": [round(float(number), 6) for number in model.fit().params]}


def hpmixed(place, np, api):
    """statsmodels: a linear model with an effect of each group."""
    data, bits = matrix(np, place.input("models"), COLUMNS_MODEL)
    groups = np.arange(len(data)) // 50
    fit = api.MixedLM(data[:, -1], api.add_constant(data[:, :3]), groups=groups).fit(reml=False)
    return {"input": bits, "fit": [round(float(number), 4) for number in fit.fe_params]}


def nlmixed(place, np, optimize):
    """scipy: a curve that is not linear in what is sought."""
    data, bits = matrix(np, place.input("dose"), COLUMNS_MODEL)
    seen = data[:, -1]

    def curve(x, height, slope, base):
        return base + height * np.tanh(slope * x)

    fit, _ = optimize.curve_fit(curve, data[:, 0], seen, p0=[1.0, 1.0, 0.0], maxfev=2000)
    return {"input": bits, "fit": [round(float(number), 5) for number in fit]}


def rank1(place, np):
    """numpy: ranks within each of 200 columns."""
    data, bits = matrix(np, place.input("rank"), COLUMNS_RANK)
    ranks = data.argsort(axis=0, kind="stable").argsort(axis=0, kind="stable")
    return {"input": bits, "ranks": hashlib.sha256(ranks.astype("<i8").tobytes()).hexdigest()}


def surveylogistic(place, np, linear_model):
    """scikit-learn: logistic regression with a weight for each row."""
    data, bits = matrix(np, place.input("models"), COLUMNS_MODEL)
    model = linear_model.LogisticRegression(max_iter=500, tol=1e-10)
    model.fit(data[:, :-1], data[:, -1] > 0, sample_weight=1.0 + np.arange(len(data)) % 3)
    return {"input": bits, "fit": [round(float(number), 5) for number in model.coef_[0]]}


def hist_clm(place, duckdb):
    """DuckDB: histograms and quantiles of a table of claims, in memory."""
    types = ", ".join(f"'{column}': '{'VARCHAR' if column == 'word' else 'BIGINT'}'" for column in COLUMNS)
    base = duckdb.connect()
    base.execute("set threads = 1")
    base.execute(f"create table t as from read_csv('{place.input('claims')}', header = false, delim = ',', columns = {{{types}}})")
    sums = base.execute("select count(*)::BIGINT, sum(id)::VARCHAR, sum(key)::VARCHAR, sum(grp)::VARCHAR, sum(qty)::VARCHAR, "
                        "sum(price)::VARCHAR, bit_xor(hash(word))::VARCHAR from t").fetchone()
    bins = base.execute("select price // 5000000 as bin, count(*) from t group by bin order by bin").fetchall()
    middle = base.execute("select quantile_disc(price, [0.01, 0.25, 0.5, 0.75, 0.99]) from t").fetchone()[0]
    return {"sums": sums, "bins": bins, "quantiles": middle}


def codegen_issue(place, pl):
    """Polars: one table grouped, joined with itself and sorted, all in memory."""
    types = {column: pl.String if column == "word" else pl.Int64 for column in COLUMNS}
    with open(place.input("codegen"), "rb") as file:
        table = pl.read_csv(file, has_header=False, schema=types)
    groups = table.group_by("grp").agg(pl.len().alias("rows"), pl.col("price").sum().alias("all"))
    joined = table.join(groups, on="grp").with_columns((pl.col("price") * 1000 // pl.col("all")).alias("share"))
    top = joined.sort(["share", "id"], descending=True).head(50)["id"].to_list()
    words = hashlib.sha256("".join(table["word"]).encode()).hexdigest()
    sums = [int(table[column].sum()) for column in COLUMNS[:5]]
    return {"sums": sums, "words": words, "share": int(joined["share"].sum()), "top": top}


def pension2(place, np):
    """numpy: grids of ages by years, each cell from the one before."""
    data, bits = matrix(np, place.input("pension"), COLUMNS_MODEL)
    people, years = data[:, 0], 60
    grid = np.empty((len(people), years))
    grid[:, 0] = 1.0 + np.abs(people)
    for year in range(1, years):
        grid[:, year] = grid[:, year - 1] * 1.02 + np.abs(data[:, year % COLUMNS_MODEL])
    return {"input": bits, "sums": rounded(grid.sum(axis=0)[[0, 20, 40, 59]])}


main({
    "comp_test1": (["numpy"], comp_test1),
    "comp_test2": (["numpy", "sklearn.cluster", "sklearn.decomposition"], comp_test2),
    "comp_test5": (["numpy", "sklearn.ensemble"], comp_test5),
    "genmod": (["numpy", "statsmodels.api"], genmod),
    "glimmix": (["numpy", "statsmodels.api"], glimmix),
    "hpmixed": (["numpy", "statsmodels.api"], hpmixed),
    "nlmixed": (["numpy", "scipy.optimize"], nlmixed),
    "rank1": (["numpy"], rank1),
    "surveylogistic": (["numpy", "sklearn.linear_model"], surveylogistic),
    "hist_clm": (["duckdb"], hist_clm),
    "codegen_issue": (["polars"], codegen_issue),
    "pension2": (["numpy"], pension2),
})
