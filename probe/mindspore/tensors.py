# placeholder by the lead until the real one is written; overwrite freely
import numpy as np, mindspore
class Deferred(BaseException):
    def __init__(self, error): super().__init__(error); self.error = error
def is_tensor(v): return isinstance(v, mindspore.Tensor)
def describe(t): return tuple(t.shape), t.dtype
def identity(t): return (id(t), object()), lambda: t
def hold(t): return None
def unchanged(t, b, c): return False
def read(t):
    try: return t.asnumpy()
    except Exception as e: raise Deferred(e) from e
def moments(ts, columns, eps, scale=None):
    out = []
    with np.errstate(all="ignore"):
        for t in ts:
            x = read(t).astype(np.float64)
            d = dict(min=x.min(), max=x.max(), sum=x.sum(), sumsq=(x*x).sum(), m2=((x-x.mean())**2).sum(), nans=np.isnan(x).sum(), infs=np.isinf(x).sum(), below=(abs(x)<eps).sum())
            out.append([float(d[c]) for c in columns])
    return np.array(out)
def to_host(blocks): return lambda: np.concatenate(blocks) if blocks else np.empty((0, 0))
