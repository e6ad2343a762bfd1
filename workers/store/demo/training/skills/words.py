"""Single words: opposites, plurals, translations, repeating what was said."""

import random

from entities import WORDS, city, person, word
from phrasing import typed
from talk import Talk, turns

OPPOSITES = """
hot cold|big small|tall short|fast slow|good bad|happy sad|old new|light dark|day night|up down
left right|in out|on off|open closed|rich poor|hard soft|early late|full empty|high low|loud quiet
strong weak|wet dry|clean dirty|easy difficult|true false|first last|near far|long short|yes no
black white|thick thin|love hate|begin end|buy sell|give take|win lose|push pull|north south
east west|young old|inside outside|always never|more less|question answer|friend enemy|war peace
life death|summer winter|brave afraid|cheap expensive|heavy light|deep shallow|wide narrow
beautiful ugly|sweet sour|before after|above below|arrive leave|laugh cry|remember forget
start stop|success failure|noisy silent|smooth rough|sharp blunt|male female
"""
PLURALS = """
child children|mouse mice|man men|woman women|foot feet|tooth teeth|goose geese|person people
sheep sheep|fish fish|ox oxen|wolf wolves|leaf leaves|knife knives|life lives|city cities
baby babies
box boxes|bus buses|church churches|dog dogs|cat cats|house houses|book books|car cars
tomato tomatoes
potato potatoes|hero heroes|cactus cacti|llama llamas|story stories|family families|half halves
wife wives|thief thieves|shelf shelves|deer deer|country countries|key keys|day days|watch watches
"""
# English: French, German, Spanish
TRANSLATIONS = """
hello: bonjour, hallo, hola|goodbye: au revoir, auf Wiedersehen, adiós|yes: oui, ja, sí
no: non, nein, no|please: s'il vous plaît, bitte, por favor|thank you: merci, danke, gracias
house: maison, Haus, casa|water: eau, Wasser, agua|bread: pain, Brot, pan|milk: lait, Milch, leche
dog: chien, Hund, perro|cat: chat, Katze, gato|bird: oiseau, Vogel, pájaro
horse: cheval, Pferd, caballo
man: homme, Mann, hombre|woman: femme, Frau, mujer|child: enfant, Kind, niño
friend: ami, Freund, amigo
love: amour, Liebe, amor|sun: soleil, Sonne, sol|moon: lune, Mond, luna|day: jour, Tag, día
night: nuit, Nacht, noche|red: rouge, rot, rojo|blue: bleu, blau, azul|green: vert, grün, verde
white: blanc, weiß, blanco|black: noir, schwarz, negro|one: un, eins, uno|two: deux, zwei, dos
three: trois, drei, tres|book: livre, Buch, libro|apple: pomme, Apfel, manzana
cheese: fromage, Käse, queso
wine: vin, Wein, vino|tree: arbre, Baum, árbol|flower: fleur, Blume, flor|car: voiture, Auto, coche
school: école, Schule, escuela|city: ville, Stadt, ciudad|sea: mer, Meer, mar
fire: feu, Feuer, fuego
heart: cœur, Herz, corazón|hand: main, Hand, mano|mother: mère, Mutter, madre
father: père, Vater, padre
brother: frère, Bruder, hermano|sister: sœur, Schwester, hermana|good: bon, gut, bueno
world: monde, Welt, mundo|coffee: café, Kaffee, café|tea: thé, Tee, té|fish: poisson, Fisch, pescado
egg: œuf, Ei, huevo|king: roi, König, rey|time: temps, Zeit, tiempo|year: année, Jahr, año
good morning: bonjour, guten Morgen, buenos días|good night: bonne nuit, gute Nacht, buenas noches
"""
SAME = "I am to say these words, and nothing else."
LANGUAGES = ("French", "German", "Spanish")


def table(text: str) -> list[str]:
    return [entry.strip() for line in text.strip().splitlines() for entry in line.split("|")]


def both_ways(text: str) -> dict[str, str]:
    """Each word of a pair to the other; where a word has two opposites, the first one counts."""
    result: dict[str, str] = {}
    for entry in table(text):
        left, right = entry.split()
        result.setdefault(left, right)
        result.setdefault(right, left)
    return result


OPPOSITE = both_ways(OPPOSITES)
PLURAL = dict(entry.split() for entry in table(PLURALS))
WORDS_ABROAD = {
    english: tuple(part.strip() for part in rest.split(","))
    for english, rest in (entry.split(":") for entry in table(TRANSLATIONS))
}


def opposite(rng: random.Random) -> Talk:
    given = rng.choice(list(OPPOSITE))
    form = rng.choice(["what is the opposite of {w}", "opposite of {w}", "the opposite of {w}",
                       "tell me the opposite of {w}", "what is the antonym of {w}",
                       "antonym of {w}",
                       'what is the opposite of "{w}"', "give me the opposite of {w}",
                       "which word is the opposite of {w}"])  # fmt: skip
    answer = f'The opposite of "{given}" is "{OPPOSITE[given]}".'
    thought = f'The word is "{given}", and its opposite is wanted.'
    return turns(typed(form.format(w=given), rng), answer, thought=thought)


def plural(rng: random.Random) -> Talk:
    one = rng.choice(list(PLURAL))
    form = rng.choice(["what is the plural of {w}", "plural of {w}", "the plural of {w}",
                       'what is the plural of "{w}"', "tell me the plural of {w}",
                       "give me the plural of {w}", "what is the plural form of {w}"])  # fmt: skip
    answer = f'The plural of "{one}" is "{PLURAL[one]}".'
    thought = f'The word is "{one}", and its plural is wanted.'
    return turns(typed(form.format(w=one), rng), answer, thought=thought)


def translation(rng: random.Random) -> Talk:
    english = rng.choice(list(WORDS_ABROAD))
    i = rng.randrange(3)
    language, foreign = LANGUAGES[i], WORDS_ABROAD[english][i]
    form = rng.choice(["what is {w} in {l}", "how do you say {w} in {l}", "translate {w} to {l}",
                       'how do you say "{w}" in {l}', "what is the {l} word for {w}",
                       "translate {w} into {l}", "{w} in {l}", 'translate "{w}" to {l}',
                       "what does {w} mean in {l}", "how do i say {w} in {l}", "say {w} in {l}",
                       "tell me the {l} word for {w}"])  # fmt: skip
    answer = f'"{english[0].upper() + english[1:]}" in {language} is "{foreign}".'
    thought = f'The word is "{english}", and the language is {language}.'
    return turns(typed(form.format(w=english, l=language), rng), answer, thought=thought)


def phrase(rng: random.Random) -> str:
    """One to five words to copy."""
    kind = rng.randrange(4)
    if kind == 0:
        return person(rng)
    if kind == 1:
        return f"{rng.choice(['hello', 'hi', 'goodbye', 'thank you'])} {person(rng)}"
    if kind == 2:
        return f"{word(rng)} {word(rng)} {city(rng)}"
    return " ".join(word(rng) for _ in range(rng.randint(1, 5)))


def repeat(rng: random.Random) -> Talk:
    text = phrase(rng)
    form = rng.choice(["repeat after me: {t}", "say {t}", "repeat: {t}", 'say "{t}"', "say: {t}",
                       "repeat {t}", "please repeat: {t}", 'repeat the words "{t}"', "echo {t}",
                       "please say {t}", "repeat this: {t}", "write {t}"])  # fmt: skip
    form = form if rng.random() < 0.5 else form[0].upper() + form[1:]
    return turns(form.format(t=text), text, thought=SAME)


def spell(rng: random.Random) -> Talk:
    """Letters of the words in a fixed list; the model cannot see the letters of others."""
    given = rng.choice(WORDS)
    form = rng.choice(["spell {w}", "how do you spell {w}", "spell the word {w}", 'spell "{w}"'])
    return turns(typed(form.format(w=given), rng, exact=True), "-".join(given.upper()) + ".",
                 thought=f'The word is "{given}", and its letters are wanted.')  # fmt: skip


SKILLS = [(1.6, opposite), (0.9, plural), (2.5, translation), (3.0, repeat), (0.5, spell)]
