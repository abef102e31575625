package vocab

import "strings"

// words are what generated text is made of. A few hold characters of several bytes, so that
// tokens can end inside a character.
var words = strings.Fields(`
a able about above after again air all along also always an and another answer any are area around as ask at away back
balance base be because been before began begin being below between big block book both build but by café call came can
case cause cell change check city clear close cloud cold color come common complete could country course cover cross cut
dark data day deep did different do does done door down draw during each early earth east easy end engine enough even
ever every example eye fact fall family far fast feel few field figure fill final find fine fire first five fly follow
food for force form found four free from front full game garden gave general get give glass go good great green ground
group grow half hand happen hard has have head hear heart heat help here high hold home horse hot hour house how however
hundred idea if in inside into is island it its just keep kind king know land language large last late later lead learn
leave left less let letter level life light like line list little live long look low machine made main make many map mark
may mean measure memory might mile mind minute model moment money moon more morning most mother move much music must name
naïve near need never new next night no north not note nothing notice now number object ocean of off often old on once one
only open or order other our out over own page paper part pass past path pattern people perhaps person piece place plain
plan plane plant play point power present problem produce pull put question quick rain ran reach read ready real record
red rest right river road rock room round rule run said same saw say school science sea second see seem self sentence set
seven several shape she ship short should show side simple since sing size sky sleep slow small snow so some song soon
sound south space special stand star start state stay step still stone stop story street strong study such sun sure
surface system table take talk teach tell ten test than that the their them then there these they thing think this those
though thought thousand three through time to together told too took top toward town travel tree true try turn two under
unit until up us use usual very voice wait walk want war warm was watch water way we week well went were west what wheel
when where which while white who whole why will wind window wish with without wonder wood word work world would write year
yes yet you young your`)

// Word returns the word chosen by n.
func Word(n uint64) string { return words[n%uint64(len(words))] }
