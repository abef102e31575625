package loadgen

import (
	"math/rand/v2"
	"strings"
)

var vocabulary = strings.Fields(`able about above after again air all along always answer any area around ask away back
base be because before begin between big book both bring build but by call can car carry change city clear close cold
come could country cut dark day deep different do door down draw dry each earth east eat end even every eye face fall
far fast father feel few field find fire first fish five fly follow food form four friend from full game give glass go
good great green ground group grow half hand hard have head hear heart help here high hold home horse hot hour house
how idea if island keep kind king know land large last late learn leave left let letter life light like line list live
long look low machine make man map mark mean measure men mile mind money moon more most mother move mountain much music
name near need never new next night north note number off often old once open order other out over own page paper part
pass people person place plain plan plant play point power press problem pull put question quick rain read red rest
right river road rock room round run sail same say school science sea second seem self sentence serve set ship short
show side simple sing sit six size sky slow small snow some song soon sound south spell stand star start state stay
step still stone stop story street strong study such sun table take talk teach tell ten test than thing think three
time together top town travel tree true try turn two under unit until use usual very voice vowel wait walk want war
warm watch water way week well west what wheel when where which white who whole why wind wood word work world write year`)

// text makes up words.
type text struct{ dice *rand.Rand }

func newText(seed, stream uint64) text { return text{rand.New(rand.NewPCG(seed, stream))} }

// words are n of them, in sentences.
func (t text) words(n int) string {
	var b strings.Builder
	for i := range n {
		w := vocabulary[t.dice.IntN(len(vocabulary))]
		if i%11 == 0 {
			w = strings.ToUpper(w[:1]) + w[1:]
		}
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(w)
		if i%11 == 10 || i == n-1 {
			b.WriteByte('.')
		}
	}
	return b.String()
}
