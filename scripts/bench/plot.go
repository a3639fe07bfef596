package bench

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// SVG plots the rates over time and the latencies of the measurements with these names. If a measurement was
// made with several numbers of connections, only the number that came last is plotted.
func (t *Table) SVG(names ...string) string {
	rows := t.named(names)
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="13" fill="#222">`+"\n",
		plotWidth, 2*panelHeight)
	fmt.Fprintf(&b, `<rect width="100%%" height="100%%" fill="#fff"/>`+"\n")
	ratePanel(rows).draw(&b, 0)
	latencyPanel(rows).draw(&b, panelHeight)
	b.WriteString("</svg>\n")
	return b.String()
}

func (t *Table) named(names []string) (rows [][]Result) {
	for _, name := range names {
		for _, row := range slices.Backward(t.rows) {
			if row[0].Name == name {
				rows = append(rows, row)
				break
			}
		}
	}
	return rows
}

// The size of the plot, and the margins of a panel.
const (
	plotWidth   = 960
	panelHeight = 400
	left        = 70
	right       = 240 // for the names of the lines
	top         = 50
	bottom      = 55
)

// colors are distinguishable for color-blind people (the palette of Okabe and Ito).
var colors = []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"}

type panel struct {
	title, xLabel, yLabel string
	x, y                  axis
	lines                 []line
}

// axis goes from min to max. On a logarithmic axis, min, max and all positions are logarithms to base 10.
type axis struct {
	min, max float64
	ticks    []tick
}

type tick struct {
	at    float64
	label string
}

type line struct {
	name  string
	parts [][]point // the points of a part are joined, but the parts are not
}

type point struct{ x, y float64 }

// maxPoints limits the points in a line of rates; each round may add one.
const maxPoints = 400

// ratePanel plots the rates over time, one round after another.
func ratePanel(rows [][]Result) panel {
	p := panel{title: "Rate over time", xLabel: "seconds of the measurement, one round after another", yLabel: "rows/s"}
	rounds, longest := 1, 1
	for _, row := range rows {
		rounds = max(rounds, len(row))
		for _, r := range row {
			longest = max(longest, len(r.Series))
		}
	}
	group := max(2, (rounds*longest+maxPoints-1)/maxPoints) // steps of Series in one point
	pointSeconds := float64(group) * seriesStep.Seconds()
	roundSeconds := float64(longest) * seriesStep.Seconds()
	highest := 1.0
	for _, row := range rows {
		l := line{name: row[0].label()}
		for i, r := range row {
			var part []point
			for steps := range slices.Chunk(r.Series, group) {
				sum := 0
				for _, n := range steps {
					sum += n
				}
				y := float64(sum) / (float64(len(steps)) * seriesStep.Seconds())
				part = append(part, point{float64(i)*roundSeconds + (float64(len(part))+0.5)*pointSeconds, y})
				highest = max(highest, y)
			}
			l.parts = append(l.parts, part)
		}
		p.lines = append(p.lines, l)
	}
	p.x = linear(roundSeconds * float64(rounds))
	p.y = linear(highest)
	return p
}

// latencyPanel plots the median of the rounds at each percentile, up to the last percentile above which every
// round has a call.
func latencyPanel(rows [][]Result) panel {
	p := panel{title: "Latency of calls, median of the rounds", xLabel: "percentile of the calls", yLabel: "ms"}
	lowest, highest := math.Inf(1), math.Inf(-1)
	for _, row := range rows {
		l := line{name: row[0].label()}
		var part []point
		fewest := math.MaxInt // calls
		for _, r := range row {
			fewest = min(fewest, len(r.Took))
		}
		for x := 0.0; x <= 3.001; x += 0.05 { // 1, 2, 3 are the percentiles 90, 99, 99.9
			slower := math.Pow(10, -x) // the part of the calls above the percentile
			if float64(fewest)*slower < 1 {
				break
			}
			y := math.Log10(medianLatency(row, 1-slower))
			part = append(part, point{x, y})
			lowest, highest = min(lowest, y), max(highest, y)
		}
		l.parts = [][]point{part}
		p.lines = append(p.lines, l)
	}
	p.x = axis{0, 3, []tick{{0, "0"}, {-math.Log10(0.5), "50"}, {1, "90"}, {-math.Log10(0.05), "95"}, {2, "99"}, {-math.Log10(0.005), "99.5"}, {3, "99.9"}}}
	p.y = logarithmic(lowest, highest)
	return p
}

func (r Result) label() string { return fmt.Sprintf("%s (%d)", r.Name, r.Connections) }

// linear returns an axis from 0 to highest with about six ticks.
func linear(highest float64) axis {
	step := math.Pow(10, math.Floor(math.Log10(highest/4)))
	for _, factor := range []float64{5, 2} {
		if highest/(step*factor) >= 3 {
			step *= factor
			break
		}
	}
	a := axis{max: highest}
	for i := 0; float64(i)*step <= highest*1.0001; i++ {
		a.ticks = append(a.ticks, tick{float64(i) * step, fmt.Sprintf("%g", math.Round(float64(i)*step*1000)/1000)})
	}
	return a
}

// logarithmic returns an axis with ticks at 1, 2 and 5 times the powers of ten.
func logarithmic(lowest, highest float64) axis {
	if lowest > highest { // no line has a point
		lowest, highest = 0, 1
	}
	a := axis{min: math.Floor(lowest), max: math.Ceil(highest)}
	for decade := a.min; decade <= a.max; decade++ {
		for _, factor := range []float64{1, 2, 5} { // the distance of two ticks is 0.4 at most
			at := decade + math.Log10(factor)
			if at >= lowest-0.4 && at <= highest+0.4 {
				a.ticks = append(a.ticks, tick{at, fmt.Sprintf("%g", factor*math.Pow(10, decade))})
			}
		}
	}
	a.min, a.max = a.ticks[0].at, a.ticks[len(a.ticks)-1].at
	return a
}

func (p panel) draw(b *strings.Builder, y0 float64) {
	const width, height = plotWidth - left - right, panelHeight - top - bottom
	px := func(x float64) float64 { return left + width*(x-p.x.min)/(p.x.max-p.x.min) }
	py := func(y float64) float64 { return y0 + top + height*(1-(y-p.y.min)/(p.y.max-p.y.min)) }
	text := func(x, y float64, anchor, s string) {
		fmt.Fprintf(b, `<text x="%.1f" y="%.1f" text-anchor="%s">%s</text>`+"\n", x, y, anchor, s)
	}
	fmt.Fprintf(b, `<text x="%d" y="%.1f" font-size="16" font-weight="bold">%s</text>`+"\n", left, y0+28, p.title)
	text(left-8, y0+top-12, "end", p.yLabel)
	text(left+width/2, y0+panelHeight-12, "middle", p.xLabel)
	for _, t := range p.x.ticks {
		fmt.Fprintf(b, `<path d="M%.1f %.1fv%d" stroke="#eee"/>`+"\n", px(t.at), y0+top, height)
		text(px(t.at), y0+top+height+18, "middle", t.label)
	}
	for _, t := range p.y.ticks {
		fmt.Fprintf(b, `<path d="M%d %.1fh%d" stroke="#ddd"/>`+"\n", left, py(t.at), width)
		text(left-8, py(t.at)+4, "end", t.label)
	}
	for i, l := range p.lines {
		color := colors[i%len(colors)]
		for _, part := range l.parts {
			var points []string
			for _, at := range part {
				points = append(points, fmt.Sprintf("%.1f,%.1f", px(at.x), py(at.y)))
			}
			fmt.Fprintf(b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n", strings.Join(points, " "), color)
		}
		y := y0 + top + 14 + float64(i)*22
		fmt.Fprintf(b, `<path d="M%d %.1fh20" stroke="%s" stroke-width="4"/>`+"\n", left+width+16, y, color)
		text(left+width+42, y+4, "start", l.name)
	}
}
