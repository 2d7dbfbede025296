"""The coefficient rules, each written from its formula, with every value in a list."""

import math
from fractions import Fraction


def clamp(x, low, high):
    """x, at least low and at most high."""
    return max(low, min(high, x))


def mean(values):
    """The exact sum, rounded, over the number of values."""
    return float(sum(map(Fraction, values))) / len(values)


class Reference:
    """A coefficient with bounds; a rule says what it would like to be."""

    def __init__(self, init, minimum=1e-8, maximum=1e4):
        self.value = init
        self.minimum, self.maximum = minimum, maximum

    def update(self, current, n_steps=1):
        """Adapts to one value, or to a list of values."""
        values = current if isinstance(current, list) else [current]
        if n_steps and values:
            self.value = self.next_value(values, n_steps)
        return self.value

    def bounded(self, x):
        """x within the bounds."""
        return clamp(x, self.minimum, self.maximum)


class Fixed(Reference):
    """A constant."""

    def next_value(self, values, n_steps):
        return self.value


class Adaptive(Reference):
    """Ziegler et al. 2019."""

    def __init__(self, init, target, horizon, clip=0.2, **bounds):
        super().__init__(init, **bounds)
        self.target, self.horizon, self.clip = target, horizon, clip

    def next_value(self, values, n_steps):
        error = clamp(values[0] / self.target - 1, -self.clip, self.clip)
        return self.bounded(self.value * (1 + error * n_steps / self.horizon))


class PPOPenalty(Reference):
    """Schulman et al. 2017."""

    def __init__(
        self,
        init,
        target,
        high=1.5,
        low=1 / 1.5,
        increase_factor=2.0,
        decrease_factor=0.5,
        **bounds,
    ):
        super().__init__(init, **bounds)
        self.target, self.high, self.low = target, high, low
        self.increase_factor, self.decrease_factor = increase_factor, decrease_factor

    def judge(self, kl):
        """The next value for a divergence."""
        if kl > self.high * self.target:
            return self.bounded(self.value * self.increase_factor)
        if kl < self.low * self.target:
            return self.bounded(self.value * self.decrease_factor)
        return self.bounded(self.value)

    def next_value(self, values, n_steps):
        return self.judge(values[0])


class Threshold(PPOPenalty):
    """The same on the mean of a window."""

    def __init__(self, init, target, window=10, **rest):
        defaults = {
            "low": 0.5,
            "increase_factor": 1.5,
            "decrease_factor": 0.8,
            "minimum": 0.01,
            "maximum": 1.0,
        }
        super().__init__(init, target, **(defaults | rest))
        self.window = window
        self.seen = []

    def next_value(self, values, n_steps):
        self.seen.extend(values)
        if len(self.seen) < self.window:
            return self.value
        return self.judge(mean(self.seen[-self.window :]))


class PID(Reference):
    """log coef += kp e dt + ki (integral of I over dt) + kd (rise of e), |I| limited."""

    def __init__(self, init, target, horizon, kp=1.0, ki=0.2, kd=0.5, clip=0.2, **bounds):
        super().__init__(init, **bounds)
        self.target, self.horizon = target, horizon
        self.kp, self.ki, self.kd, self.clip = kp, ki, kd, clip
        self.integral, self.errors = 0.0, []

    def most(self):
        """The largest integral."""
        if not self.ki:
            return 0.0
        speed = self.kp * self.clip / 4 if self.kp else math.log(self.maximum / self.minimum)
        return speed / self.ki

    def next_value(self, values, n_steps):
        dt = n_steps / self.horizon
        error = clamp(values[0] / self.target - 1, -self.clip, self.clip)
        rise = error - self.errors[-1] if self.errors else 0.0
        self.errors.append(error)
        most = self.most()
        # A trapezoid until the limit is reached, then a rectangle.
        start, end = self.integral, clamp(self.integral + error * dt, -most, most)
        slope = (end - start) / error if error else dt
        area = (start + end) / 2 * slope + end * (dt - slope)
        log_step = self.kp * error * dt + self.ki * area + self.kd * rise
        wanted = math.exp(min(math.log(self.value) + log_step, 700.0))
        at_bound = (
            wanted >= self.maximum * (1 - 1e-12)
            if error > 0
            else wanted <= self.minimum * (1 + 1e-12)
        )
        if at_bound and error > 0:
            self.integral = min(end, max(start, 0.0))
        elif at_bound and error < 0:
            self.integral = max(end, min(start, 0.0))
        else:
            self.integral = end
        return self.bounded(wanted)


class Scheduled:
    """A ramp, then another rule."""

    def __init__(self, inner, warmup_steps, start, shape="linear"):
        self.inner, self.warmup_steps, self.start, self.shape = inner, warmup_steps, start, shape
        self.steps = 0

    @property
    def value(self):
        if self.steps >= self.warmup_steps:
            return self.inner.value
        x = self.steps / self.warmup_steps
        share = x if self.shape == "linear" else (1 - math.cos(math.pi * x)) / 2
        return (1 - share) * self.start + share * self.inner.value

    def update(self, current, n_steps=1):
        """The ramp takes every step until it ends, then the rule."""
        if self.steps >= self.warmup_steps:
            return self.inner.update(current, n_steps)
        if current != []:
            self.steps += n_steps
        return self.value
