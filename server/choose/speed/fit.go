package speed

import (
	"math"
	"slices"
)

// row is one equation of a fit: sum(p·x) should be near t. offset is the part of the measured time
// that is known already; errors are relative to both together.
type row struct {
	x         [3]float64
	t, offset float64
	weight    float64
}

// pull draws parameter i of a fit towards at with the weight of so many rows.
type pull struct{ at, weight float64 }

// huber is the relative error from which a row counts less, as 1/error.
const huber = 0.25

// huberFactor is huber as a factor.
var huberFactor = math.Exp(huber)

// factor is how many times the larger one of two positive numbers is the other one.
func factor(a, b float64) float64 { return max(a/b, b/a) }

// rounds is the number of times a fit weighs its rows again.
const rounds = 5

// least minimises the weighted squared relative errors of rows, with large errors discounted
// (iteratively reweighted least squares with Huber's weights), beginning at p.
func least(rows []row, p [3]float64, pulls [3]pull) [3]float64 {
	for range rounds {
		var a [3][3]float64
		var b [3]float64
		for i := range rows {
			r := &rows[i]
			predicted := max(dot(p, r.x)+r.offset, 1e-9)
			w := r.weight / (predicted * predicted)
			if f := factor(max(r.t+r.offset, 1e-9), predicted); f > huberFactor {
				w *= huber / math.Log(f)
			}
			for j := range 3 {
				wx := w * r.x[j]
				for k := range j + 1 {
					a[j][k] += wx * r.x[k]
				}
				b[j] += wx * r.t
			}
		}
		a[0][1], a[0][2], a[1][2] = a[1][0], a[2][0], a[2][1]
		for j, q := range pulls {
			w := q.weight / max(q.at*q.at, 1e-30)
			a[j][j] += w
			b[j] += w * q.at
		}
		next, ok := solve(a, b)
		if !ok {
			return p
		}
		p = next
	}
	return p
}

func dot(p, x [3]float64) float64 { return p[0]*x[0] + p[1]*x[1] + p[2]*x[2] }

// solve solves a·p = b for a symmetric positive definite a, scaled so that its diagonal is 1.
func solve(a [3][3]float64, b [3]float64) (p [3]float64, ok bool) {
	var scale [3]float64
	for i := range 3 {
		if a[i][i] <= 0 || math.IsInf(a[i][i], 0) || math.IsNaN(a[i][i]) {
			return p, false
		}
		scale[i] = 1 / math.Sqrt(a[i][i])
	}
	for i := range 3 {
		b[i] *= scale[i]
		for j := range 3 {
			a[i][j] *= scale[i] * scale[j]
		}
	}
	for i := range 3 { // Gauss without pivoting: the matrix is positive definite
		if a[i][i] < 1e-12 {
			return p, false
		}
		for j := i + 1; j < 3; j++ {
			f := a[j][i] / a[i][i]
			for k := i; k < 3; k++ {
				a[j][k] -= f * a[i][k]
			}
			b[j] -= f * b[i]
		}
	}
	for i := 2; i >= 0; i-- {
		v := b[i]
		for j := i + 1; j < 3; j++ {
			v -= a[i][j] * p[j]
		}
		p[i] = v / a[i][i]
	}
	for i := range 3 {
		p[i] *= scale[i]
	}
	return p, !math.IsNaN(p[0] + p[1] + p[2])
}

// weighed is a number with a weight.
type weighed struct{ value, weight float64 }

// median is the weighted median of list, which it sorts; list has weight.
func median(list []weighed) float64 {
	slices.SortFunc(list, func(a, b weighed) int {
		switch {
		case a.value < b.value:
			return -1
		case a.value > b.value:
			return 1
		}
		return 0
	})
	var all float64
	for _, v := range list {
		all += v.weight
	}
	half := all / 2
	for _, v := range list {
		if half -= v.weight; half <= 0 {
			return v.value
		}
	}
	return 0
}
