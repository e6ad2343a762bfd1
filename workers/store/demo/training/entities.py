"""Names of people and places to copy: real ones, and invented ones so that copying generalizes.

The names in `evaluate.py` are left out here on purpose.
"""

import random


def listed(words: str) -> list[str]:
    """The words of a text."""
    return words.split()


PEOPLE = listed("""
Aaron Abigail Adam Adele Adrian Agnes Ahmed Aisha Alan Albert Alejandro Alessia Alex Alexander
Alexandra Alfred Alice Alicia Alina Amanda Amelia Amir Amy Ana Andrea Andrew Andy Angela Anita Anna
Anne Anton Antonio Ari Arthur Astrid Audrey Barbara Beatrice Ben Benjamin Bernard Beth Betty Bianca
Bill Bob Boris Brenda Brian Bruno Camila Carl Carla Carlos Carmen Caroline Cathy Cecilia Charles
Charlie Charlotte Chen Chloe Chris Christian Christine Claire Clara Clark Claudia Colin Connor Craig
Cristina Daisy Dan Daniel Daniela Daria David Deborah Denis Diana Diego Dina Dominic Donald Dora
Doris Dorothy Dylan Edgar Edith Edward Eleanor Elena Eli Elias Elisa Elizabeth Ella Ellen Elsa Emil
Emilia Emily Emma Eric Erik Erin Esther Ethan Eva Evan Eve Fatima Felix Fiona Flora Florian Frances
Francesco Frank Fred Frida Gabriel Gary George Gerald Gina Giovanni Gloria Grace Greta Gustav Hana
Hannah Hans Harold Harry Hassan Hector Heidi Helen Helena Henry Hilda Holly Hugo Ian Ibrahim Ida
Igor
Ines Ingrid Irene Iris Isaac Isabel Ivan Ivy Jack Jacob Jade James Jan Jane Janet Jasmine Jason
Javier
Jean Jennifer Jessica Jim Joan Joe Johanna John Jonas Jonathan Jordan Jorge Jose Joseph Joshua Juan
Judith Julia Julian June Karen Karl Kate Katherine Keiko Keith Kelly Ken Kevin Kim Klaus Kurt Laila
Lara Larry Laura Lea Leah Lena Leo Leon Leonard Lewis Liam Lily Linda Lisa Liz Lola Louis Louise
Luca
Lucas Lucia Lucy Luis Luke Lydia Magda Marco Margaret Maria Marie Marina Mario Mark Marta Martha
Martin Mary Mateo Matilda Matthew Max Maya Megan Mei Mia Michael Miguel Mila Milan Miriam Mohammed
Monica Nadia Nancy Naomi Nathan Nicholas Nick Nicole Nils Nina Noah Nora Norman Oliver Olivia Omar
Oscar Otto Pablo Pamela Pat Patricia Patrick Paul Paula Pedro Peter Philip Phoebe Pia Pierre Rachel
Ralph Raul Rebecca Rita Robert Roberto Robin Roger Roland Rosa Rose Ruby Ruth Ryan Sabine Sally Sam
Samuel Sandra Sara Sarah Scott Sean Sergei Simon Sofia Sonia Sophie Stefan Stella Stephen Steve
Susan
Sven Sylvia Tanya Tara Ted Teresa Theo Thomas Tim Tina Tobias Todd Tom Tony Tracy Ulrich Ursula
Valentina Vanessa Vera Veronica Victor Victoria Vincent Viola Walter Wendy Wilhelm William Wolfgang
Xavier Yasmin Yusuf Yvonne Zara Zoe
""")

CITIES = listed("""
Aberdeen Algiers Amsterdam Ankara Antwerp Athens Atlanta Austin Baghdad Baltimore Bangkok Barcelona
Basel Beijing Belfast Belgrade Bergen Berlin Bern Bilbao Birmingham Bogota Bologna Bonn Bordeaux
Boston Bratislava Bremen Brisbane Bristol Brussels Bucharest Budapest Cairo Calgary Cambridge
Canberra Caracas Cardiff Casablanca Chicago Cologne Copenhagen Dakar Dallas Damascus Delhi Denver
Detroit Dortmund Dresden Dubai Dublin Edinburgh Essen Florence Frankfurt Geneva Genoa Glasgow Graz
Hamburg Hanoi Hanover Havana Honolulu Houston Innsbruck Istanbul Jakarta Jerusalem Johannesburg
Karachi Kiel Kolkata Krakow Kyoto Lagos Lausanne Leeds Leipzig Lima Linz Lisbon Liverpool London
Lyon
Madrid Malaga Manchester Manila Marseille Melbourne Memphis Miami Milan Minsk Montreal Moscow Mumbai
Munich Nagoya Nairobi Nantes Naples Nice Nuremberg Orlando Osaka Oslo Ottawa Oxford Palermo Paris
Perth Philadelphia Phoenix Pisa Portland Porto Prague Quito Rabat Riga Rome Rotterdam Salzburg
Santiago
Seattle Seoul Seville Shanghai Singapore Sofia Stockholm Stuttgart Sydney Tallinn Tampa Tehran Tokyo
Toronto Toulouse Trieste Tripoli Tunis Turin Utrecht Valencia Vancouver Venice Verona Vienna Vilnius
Warsaw Washington Wellington York Zagreb Zurich
""")

LONG_CITIES = [
    "New York", "San Francisco", "Los Angeles", "Hong Kong", "Buenos Aires", "Cape Town",
    "Las Vegas",
    "New Delhi", "Mexico City", "San Diego", "Kuala Lumpur", "Tel Aviv", "Abu Dhabi", "New Orleans",
    "San Francisco, CA", "New York, NY", "Boston, MA", "London, UK", "Paris, France",
]  # fmt: skip

ANIMALS = listed("""
cat dog rabbit hamster horse parrot fish turtle snake mouse goat donkey pony sheep duck goose pig
lizard frog llama
""")

COLOURS = listed("red blue green yellow orange purple pink black white brown grey silver gold")

WORDS = listed("""
apple river stone window garden cloud paper silver candle bridge forest summer winter mountain table
lantern pepper violin castle pocket thunder button feather mirror engine island sugar anchor basket
copper dragon falcon ginger harbor jungle kettle lemon marble needle orchid pencil quartz ribbon
saddle tiger umbrella velvet walnut yellow zebra blanket coffee dolphin elephant flower guitar
hammer
iceberg jacket kitchen ladder magnet notebook ocean piano rocket spoon ticket valley whistle bread
milk moon star sun rain snow wind fire water music story letter number house street light shadow
""")

ONSETS = listed("b br c ch d dr f fl g gr h j k kl l m n p pr r s sh st t tr v w z")
VOWELS = listed("a e i o u a e i o ai ea ou")
ENDS = ["", "", "n", "r", "l", "s", "t", "m", "nd", "x", "ck"]


def invented(rng: random.Random) -> str:
    """A capitalized word that probably means nothing: `Branou`, `Kleston`."""
    word = "".join(rng.choice(ONSETS) + rng.choice(VOWELS) for _ in range(rng.choice((1, 2, 2, 3))))
    return (word + rng.choice(ENDS)).capitalize()


def sometimes_lower(name: str, rng: random.Random) -> str:
    """People type names without capitals, and get them back as they typed them."""
    return name.lower() if rng.random() < 0.1 else name


def person(rng: random.Random) -> str:
    name = rng.choice(PEOPLE) if rng.random() < 0.55 else invented(rng)
    if rng.random() < 0.06:
        name += f" {invented(rng)}"
    return sometimes_lower(name, rng)


def city(rng: random.Random) -> str:
    chance = rng.random()
    if chance < 0.5:
        name = rng.choice(CITIES)
    elif chance < 0.62:
        name = rng.choice(LONG_CITIES)
    elif chance < 0.68:
        name = f"{invented(rng)} {invented(rng)}"
    else:
        name = invented(rng)
    return sometimes_lower(name, rng)


def word(rng: random.Random) -> str:
    return rng.choice(WORDS) if rng.random() < 0.6 else invented(rng).lower()
