// Metrics of the agent in the Prometheus text format: counters, gauges and histograms with labels, a bound on the
// number of label sets, and the names and zero values that operators' dashboards rely on.

const SERIES_MAX = 1000;
const LABEL_MAX_CHARS = 256;
const NAME_PATTERN = /^[a-zA-Z_:][a-zA-Z0-9_:]*$/;
const LABEL_PATTERN = /^[a-zA-Z_][a-zA-Z0-9_]*$/;
/** Takes what comes beyond `SERIES_MAX`, so that the sum stays right. */
const OTHER = "other";

type Labels = Readonly<Record<string, string>>;

interface Family {
  readonly name: string;
  render(): string;
}

/** The label sets of one metric and a value of type `T` for each. */
class SeriesSet<T> {
  readonly #labelNames: readonly string[];
  readonly #create: () => T;
  readonly #series = new Map<string, T>();

  constructor(name: string, labelNames: readonly string[], create: () => T) {
    if (!NAME_PATTERN.test(name)) throw new Error(`not a metric name: ${name}`);
    for (const label of labelNames) if (!LABEL_PATTERN.test(label)) throw new Error(`not a label name: ${label}`);
    this.#labelNames = labelNames;
    this.#create = create;
    if (labelNames.length === 0) this.at({});
  }

  /** The value of a label set, made when it is new. */
  at(labels: Labels): T {
    let key = this.#key((label) => labels[label] ?? "");
    if (!this.#series.has(key) && this.#series.size >= SERIES_MAX) key = this.#key(() => OTHER);
    let value = this.#series.get(key);
    if (value === undefined) {
      value = this.#create();
      this.#series.set(key, value);
    }
    return value;
  }

  /** Each label set as text without braces, with its value. */
  entries(): Iterable<[string, T]> {
    return this.#series;
  }

  #key(valueOf: (label: string) => string): string {
    return this.#labelNames.map((label) => `${label}="${escapeLabel(valueOf(label))}"`).join(",");
  }
}

export class Counter implements Family {
  readonly #series: SeriesSet<{ value: number }>;

  constructor(
    readonly name: string,
    readonly help: string,
    labelNames: readonly string[],
  ) {
    this.#series = new SeriesSet(name, labelNames, () => ({ value: 0 }));
  }

  /** Adds; a negative amount is a mistake of the caller. */
  add(amount = 1, labels: Labels = {}): void {
    if (!(amount >= 0)) throw new RangeError(`a counter only goes up: ${this.name}`);
    this.#series.at(labels).value += amount;
  }

  render(): string {
    return header(this.name, this.help, "counter") + lines(this.name, this.#series.entries());
  }
}

export class Gauge implements Family {
  readonly #series: SeriesSet<{ value: number }>;

  constructor(
    readonly name: string,
    readonly help: string,
    labelNames: readonly string[],
  ) {
    this.#series = new SeriesSet(name, labelNames, () => ({ value: 0 }));
  }

  set(value: number, labels: Labels = {}): void {
    this.#series.at(labels).value = value;
  }

  /** Sets every label set seen so far to 0. */
  zero(): void {
    for (const [, series] of this.#series.entries()) series.value = 0;
  }

  render(): string {
    return header(this.name, this.help, "gauge") + lines(this.name, this.#series.entries());
  }
}

interface Distribution {
  readonly counts: number[];
  sum: number;
  count: number;
}

export class Histogram implements Family {
  readonly #series: SeriesSet<Distribution>;
  readonly #buckets: readonly number[];

  /** `buckets`: upper bounds, ascending; the infinite one is added. */
  constructor(
    readonly name: string,
    readonly help: string,
    buckets: readonly number[],
    labelNames: readonly string[],
  ) {
    if (buckets.some((bound, index) => index > 0 && bound <= (buckets[index - 1] ?? 0))) {
      throw new Error(`buckets are not ascending: ${name}`);
    }
    this.#buckets = buckets;
    this.#series = new SeriesSet(name, labelNames, () => ({ counts: buckets.map(() => 0), sum: 0, count: 0 }));
  }

  observe(value: number, labels: Labels = {}): void {
    const series = this.#series.at(labels);
    const bucket = this.#buckets.findIndex((bound) => value <= bound);
    if (bucket !== -1) series.counts[bucket] = (series.counts[bucket] ?? 0) + 1;
    series.sum += value;
    series.count++;
  }

  render(): string {
    let text = header(this.name, this.help, "histogram");
    for (const [labels, { counts, sum, count }] of this.#series.entries()) {
      const separator = labels === "" ? "" : ",";
      let cumulative = 0;
      for (const [index, bound] of this.#buckets.entries()) {
        cumulative += counts[index] ?? 0;
        text += `${this.name}_bucket{${labels}${separator}le="${number(bound)}"} ${cumulative}\n`;
      }
      text += `${this.name}_bucket{${labels}${separator}le="+Inf"} ${count}\n`;
      const braced = labels === "" ? "" : `{${labels}}`;
      text += `${this.name}_sum${braced} ${number(sum)}\n${this.name}_count${braced} ${count}\n`;
    }
    return text;
  }
}

/** Holds the metrics of one agent; names are unique. */
export class MetricsRegistry {
  readonly #families = new Map<string, Family>();
  readonly #collectors: (() => void)[] = [];

  counter(name: string, help: string, labelNames: readonly string[] = []): Counter {
    return this.#add(new Counter(name, help, labelNames));
  }

  gauge(name: string, help: string, labelNames: readonly string[] = []): Gauge {
    return this.#add(new Gauge(name, help, labelNames));
  }

  histogram(name: string, help: string, buckets: readonly number[], labelNames: readonly string[] = []): Histogram {
    return this.#add(new Histogram(name, help, buckets, labelNames));
  }

  /** Calls `collect` before each rendering, to set gauges that are cheaper to read than to keep. */
  onRender(collect: () => void): void {
    this.#collectors.push(collect);
  }

  /** The text exposition, for `Content-Type: text/plain; version=0.0.4; charset=utf-8`. */
  render(): string {
    for (const collect of this.#collectors) collect();
    return [...this.#families.values()].map((family) => family.render()).join("");
  }

  #add<T extends Family>(family: T): T {
    if (this.#families.has(family.name)) throw new Error(`metric ${family.name} exists`);
    this.#families.set(family.name, family);
    return family;
  }
}

function header(name: string, help: string, type: string): string {
  const escaped = help.replaceAll("\\", "\\\\").replaceAll("\n", "\\n");
  return `# HELP ${name} ${escaped}\n# TYPE ${name} ${type}\n`;
}

function lines(name: string, series: Iterable<[string, { value: number }]>): string {
  let text = "";
  for (const [labels, { value }] of series) text += `${name}${labels === "" ? "" : `{${labels}}`} ${number(value)}\n`;
  return text;
}

function number(value: number): string {
  if (value === Infinity) return "+Inf";
  return value === -Infinity ? "-Inf" : String(value);
}

function escapeLabel(value: string): string {
  const bounded = value.slice(0, LABEL_MAX_CHARS).toWellFormed();
  return bounded.replaceAll("\\", "\\\\").replaceAll('"', '\\"').replaceAll("\n", "\\n");
}
