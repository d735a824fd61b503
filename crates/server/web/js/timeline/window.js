// The visible period: moved, zoomed, or following the present. Does not know the page.

const SPAN_MIN = 50;
const SPAN_MAX = 400 * 86_400_000;
/** Fraction of the span that stays free after the present. */
const AHEAD = 0.03;
/** Initial span. */
const SPAN_FIRST = 600_000;

export class TimeWindow {
  /** @param {() => number} now The time of the server in ms. */
  constructor(now) {
    this.now = now;
    this.from = 0;
    this.to = 0;
    this.isFollowing = true;
  }

  get span() {
    return this.to - this.from;
  }

  get isSet() {
    return this.to > this.from;
  }

  /** @param {number} [span] */
  begin(span = SPAN_FIRST) {
    this.isFollowing = true;
    this.#endAt(this.now() + span * AHEAD, span);
  }

  /** @param {number} from @param {number} to */
  show(from, to) {
    [this.from, this.to] = [from, Math.max(to, from + SPAN_MIN)];
    this.isFollowing = false;
  }

  follow() {
    this.begin(this.span);
  }

  /** Everything since `first`. @param {number} first */
  fit(first) {
    const now = this.now();
    const span = Math.max(SPAN_MIN, now - first);
    [this.from, this.to] = [first - span * 0.01, now + span * AHEAD];
    this.isFollowing = true;
  }

  /** @param {number} factor @param {number} [at] What stays where it is. */
  zoom(factor, at = this.isFollowing ? this.now() : (this.from + this.to) / 2) {
    const span = Math.max(SPAN_MIN, Math.min(SPAN_MAX, this.span * factor));
    const part = (at - this.from) / this.span;
    this.from = at - span * part;
    this.to = this.from + span;
    const now = this.now();
    this.isFollowing = this.isFollowing && now <= this.to && now >= this.from;
  }

  /** @param {number} ms */
  pan(ms) {
    this.from += ms;
    this.to += ms;
    const now = this.now();
    this.isFollowing = ms > 0 && this.to >= now && this.from < now;
  }

  /** Follows the present if that is at least a pixel, at most a few times a second; returns whether it moved. @param {number} width */
  tick(width) {
    if (!this.isFollowing) return false;
    const { span } = this;
    const target = this.now() + span * AHEAD;
    if (target - this.to <= Math.max(span / Math.max(1, width), 200)) return false;
    this.#endAt(target, span);
    return true;
  }

  /** @param {number} to @param {number} span */
  #endAt(to, span) {
    this.to = to;
    this.from = to - span;
  }
}
